//! The same suite against every server that users run: each behaviour is written once, and is a test of its own for
//! each server and each client that can talk to it.

mod failure;
mod hosted;
mod official_agent;
mod peer;
mod server;
mod watch;

mod crashes;
mod files;
mod flood;
mod lifecycle;
mod limits;
mod opening;
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

macro_rules! rows {
    ($($module:ident: $row:expr;)*) => {$(
        mod $module {
            tests! {
                $row;
                opening::a_handshake_names_the_agent
                opening::every_session_has_an_id_of_its_own
                opening::a_wrong_token_is_refused_as_such
                opening::two_clients_of_one_server_do_not_disturb_each_other
                opening::a_client_that_reuses_ids_does_not_disturb_another
                turns::five_thousand_updates_come_in_order_before_the_answer
                turns::a_permission_is_asked_and_answered_during_a_prompt
                turns::a_cancelled_turn_stops_as_cancelled
                turns::lines_that_are_no_messages_are_told_of_and_the_turn_goes_on
                turns::a_turn_longer_than_the_servers_limit_has_its_result_in_order
                crashes::a_crash_in_a_turn_is_told_with_code_and_stderr
                crashes::a_signal_in_a_turn_is_told_as_no_exit_code
                crashes::an_idle_crash_is_told_and_the_next_prompt_fails_at_once
                lifecycle::a_server_that_is_killed_and_restarted_fails_the_turn_and_can_be_used_again
                lifecycle::a_session_is_restored_on_a_restarted_server
                lifecycle::closing_is_bounded_and_ends_the_agent_where_it_is_ours
                flood::every_loss_in_a_flood_is_told_with_its_bounds
                limits::a_prompt_over_the_servers_limit_is_refused_as_too_large
            }
        }
    )*};
}

rows! {
    mock_rpc_by_sdk: (MockRpc, Sdk);
    mock_rpc_by_protocol: (MockRpc, Protocol);
    mock_released_by_sdk: (MockReleased, Sdk);
    mock_released_by_protocol: (MockReleased, Protocol);
    mock_official_by_protocol: (MockOfficial, Protocol);
    released_0_4_0_by_sdk: (Released("0.4.0"), Sdk);
    released_0_4_2_by_sdk: (Released("0.4.2"), Sdk);
    released_0_4_2_by_protocol: (Released("0.4.2"), Protocol);
    adapter_0_5_5_by_sdk: (Adapter, Sdk);
    adapter_0_5_5_by_protocol: (Adapter, Protocol);
    official_http1_by_protocol: (OfficialHttp1, Protocol);
    official_http2_by_protocol: (OfficialHttp2, Protocol);
}

mod what_sandbox_agent_url_points_at {
    tests! { (Given, Sdk); opening::a_given_server_answers_a_prompt }
}

macro_rules! files_of {
    ($($module:ident: $row:expr;)*) => {$(
        mod $module {
            tests! {
                $row;
                files::files_are_written_and_read_over_the_limit_of_one_request
            }
        }
    )*};
}

files_of! {
    mock_files: (MockRpc, Sdk);
    released_0_4_0_files: (Released("0.4.0"), Sdk);
    released_0_4_2_files: (Released("0.4.2"), Sdk);
    adapter_0_5_5_files: (Adapter, Sdk);
}
