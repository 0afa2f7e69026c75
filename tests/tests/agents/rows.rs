//! What is shown of every agent.

mod cancel;
pub(crate) mod chat;
mod crashes;
pub(crate) mod failures;
mod files;
mod lifecycle;
mod login;
mod permissions;
mod settings;
mod tools;
mod turns;
mod usage;

use futures::future::BoxFuture;

use crate::cell::{Cell, Seen};

/// One behaviour.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Cell) -> BoxFuture<'static, Seen>,
}

macro_rules! rows {
    ($($file:ident::$name:ident)*) => {
        /// All rows, in the order of the page.
        pub(crate) const ROWS: &[Row] = &[$(
            Row { name: stringify!($name), run: |cell| Box::pin($file::$name(cell)) },
        )*];
    };
}

rows! {
    login::a_key_is_enough_to_log_in
    login::a_wrong_key_is_reported
    login::a_missing_key_is_reported
    login::authenticate_logs_in_by_a_key
    turns::two_thousand_chunks_come_in_order_before_the_outcome
    turns::thoughts_are_reported_as_thoughts
    turns::an_image_reaches_the_model
    turns::two_sessions_have_a_turn_at_once
    usage::usage_is_reported
    usage::usage_is_counted_once_over_a_load
    permissions::a_subscriber_allows_a_command
    permissions::a_subscriber_refuses_a_command
    permissions::a_permission_handler_decides
    permissions::a_policy_function_decides
    permissions::the_reader_of_a_turn_decides
    permissions::a_command_is_rejected_if_nobody_decides
    permissions::bypass_runs_a_command_unasked
    permissions::deny_runs_no_command
    permissions::accept_edits_allows_a_file_and_asks_for_a_command
    files::a_new_file_shows_its_diff
    files::an_edit_shows_its_diff
    files::confined_files_serve_the_agent
    files::confined_files_serve_a_read
    files::a_write_that_the_client_refuses
    files::terminals_are_offered
    tools::a_tool_server_is_used
    cancel::an_immediate_cancel_withdraws_the_prompt
    cancel::a_cancel_right_after_the_prompt_was_sent
    cancel::a_cancel_after_the_model_was_asked
    cancel::a_cancel_of_the_prompt_after_a_cancelled_one
    cancel::a_cancel_in_mid_stream
    cancel::a_cancel_with_an_open_permission
    cancel::a_dropped_turn_stops
    settings::a_session_has_the_model_and_mode_it_was_made_with
    settings::the_mode_is_set
    settings::an_unknown_mode_is_refused
    settings::the_model_is_set
    settings::an_option_is_set
    lifecycle::sessions_are_listed
    lifecycle::a_session_is_loaded_with_its_history
    lifecycle::an_unknown_session_is_not_loaded
    lifecycle::a_session_without_a_prompt_is_loaded_by_another_process
    lifecycle::a_session_is_resumed
    lifecycle::a_session_is_forked
    lifecycle::a_session_is_closed
    lifecycle::a_session_is_deleted
    lifecycle::a_disconnect_leaves_no_process
    lifecycle::a_disconnect_with_a_tool_server_leaves_no_process
    lifecycle::a_remaining_agent_is_killed_from_inside_the_sandbox
    lifecycle::a_killed_server_leaves_no_process
    failures::a_model_error_400_is_reported
    failures::a_model_error_429_is_reported
    failures::a_model_error_500_is_reported
    failures::a_silent_turn_ends_by_its_idle_limit
    crashes::a_killed_agent_is_reported_and_loads_its_session_again
    crashes::a_turn_right_before_a_kill_is_there_or_reported_missing
    crashes::a_killed_agent_runs_no_further_command
    crashes::a_stored_session_reports_an_answer_that_the_agent_lost
    crashes::a_stored_session_continues_after_the_agent_was_killed
    crashes::a_stored_session_continues_after_the_server_was_killed
    crashes::a_stored_session_continues_after_its_program_was_killed
    chat::the_chat_shows_what_the_agent_says
}
