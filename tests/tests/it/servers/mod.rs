//! One suite for every server that users run. Each behaviour is written once and is a separate test for each server
//! and each client that supports it.

mod failure;
mod given;
mod hosted;
mod official_agent;
mod peer;
mod server;
mod watch;

mod crashes;
mod files;
mod flood;
mod given_row;
mod lifecycle;
mod limits;
mod opening;
mod page;
mod stored;
mod turns;

use peer::Via;
use server::Kind;
pub(crate) use server::{STUB, released};

/// One server and the client that talks to it.
#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    via: Via,
}

macro_rules! tests {
    ($row:expr; $($file:ident::$behaviour:ident)*) => {$(
        #[tokio::test]
        async fn $behaviour() {
            use crate::servers::{Row, peer::Via::*, server::Kind::*};
            let (kind, via) = $row;
            crate::servers::$file::$behaviour(Row { kind, via }).await;
        }
    )*};
}

/// Behaviours of every server, with both clients.
macro_rules! everywhere {
    ($row:expr) => {
        tests! {
            $row;
            opening::a_handshake_names_the_agent
            opening::every_session_has_its_own_id
            opening::a_wrong_token_is_rejected_with_a_typed_error
            opening::two_clients_of_one_server_do_not_disturb_each_other
            opening::a_client_that_reuses_ids_does_not_disturb_another
            turns::five_thousand_updates_arrive_in_order_before_the_response
            turns::a_permission_request_gets_one_response_during_a_prompt
            turns::a_cancelled_turn_stops_as_cancelled
            turns::lines_that_are_not_messages_are_reported_and_the_turn_continues
            turns::a_turn_longer_than_the_servers_limit_has_its_result_in_order
            crashes::a_crash_in_a_turn_is_reported_once_with_code_and_stderr
            crashes::a_signal_in_a_turn_is_reported_without_an_exit_code
            crashes::an_idle_crash_is_reported_and_the_next_prompt_fails_at_once
            lifecycle::a_session_is_loaded_and_resumed_by_another_client
            lifecycle::closing_is_bounded_and_ends_the_agent_where_it_is_ours
            flood::every_loss_in_a_flood_is_reported_with_its_bounds
            limits::a_prompt_over_the_servers_limit_is_rejected_as_too_large
        }
    };
}

/// Behaviours of the SDK's client only.
macro_rules! by_sdk {
    ($row:expr) => {
        tests! {
            $row;
            stored::a_stored_session_continues_after_its_program_restarted
            stored::a_stored_session_continues_after_its_agent_crashed
            files::files_are_written_and_read_over_the_limit_of_one_request
        }
    };
}

/// Behaviours that are not tested on external servers; see [`given::NOT_APPLICABLE`].
macro_rules! ours {
    ($row:expr) => {
        tests! {
            $row;
            lifecycle::a_server_that_is_killed_and_restarted_fails_the_turn_and_can_be_used_again
        }
    };
}

macro_rules! ours_by_sdk {
    ($row:expr) => {
        tests! {
            $row;
            lifecycle::the_prompt_after_an_idle_restart_fails_and_has_not_run
            stored::a_stored_session_continues_after_its_server_was_killed
            stored::a_turn_of_a_killed_program_gets_its_permission_and_its_end
        }
    };
}

/// A server that the SDK's client does not support.
macro_rules! refused {
    ($row:expr) => {
        tests! { $row; opening::the_sdk_rejects_a_server_of_another_kind }
    };
}

macro_rules! rows {
    ($($module:ident: $row:expr, $($list:ident)*;)*) => {$(
        mod $module {
            $($list! { $row })*
        }
    )*};
}

rows! {
    mock_rpc_by_sdk: (MockRpc, Sdk), everywhere ours by_sdk ours_by_sdk;
    mock_rpc_by_protocol: (MockRpc, Protocol), everywhere ours;
    mock_released_by_sdk: (MockReleased, Sdk), everywhere ours by_sdk ours_by_sdk;
    mock_released_by_protocol: (MockReleased, Protocol), everywhere ours;
    mock_official_by_protocol: (MockOfficial, Protocol), everywhere ours;
    released_0_4_0_by_sdk: (Released("0.4.0"), Sdk), everywhere ours by_sdk ours_by_sdk;
    released_0_4_2_by_sdk: (Released("0.4.2"), Sdk), everywhere ours by_sdk ours_by_sdk;
    released_0_4_2_by_protocol: (Released("0.4.2"), Protocol), everywhere ours;
    adapter_0_5_5_by_sdk: (Adapter, Sdk), everywhere ours by_sdk ours_by_sdk;
    adapter_0_5_5_by_protocol: (Adapter, Protocol), everywhere ours;
    official_http1_by_protocol: (OfficialHttp1, Protocol), everywhere ours;
    official_http2_by_protocol: (OfficialHttp2, Protocol), everywhere ours;
    official_by_sdk: (OfficialHttp1, Sdk), refused;
    what_sandbox_agent_url_points_at: (Given, Sdk), everywhere by_sdk;
}
