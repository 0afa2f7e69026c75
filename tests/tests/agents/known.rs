//! Cells that fail today, cells with rare defects, and cells that CI runs.

use crate::cell::{Cell, Whose};

/// A cell that asserts what is right and fails, whose defect that is, and why.
#[derive(Debug)]
pub(crate) struct Known {
    /// `ROW/AGENT/FACE`, with `*` for any.
    pub(crate) cells: &'static str,
    /// Whose defect it is.
    pub(crate) whose: Whose,
    /// What happens.
    pub(crate) why: &'static str,
}

/// What fails today. A cell that passes although it is named here is reported.
pub(crate) const KNOWN: &[Known] = &[];

/// What happens after an error in a rare run of codex.
const NO_RESPONSE: &str = "the next prompt gets no response";

/// Defects that occur in some runs only. The row has to have evidence of the defect. The page says it of each of these
/// cells, whether or not the last run met it.
pub(crate) const RARE: &[Known] = &[
    Known { cells: "a_model_error_400_is_reported/codex/*", whose: Whose::Agent, why: NO_RESPONSE },
    Known { cells: "a_model_error_429_is_reported/codex/*", whose: Whose::Agent, why: NO_RESPONSE },
    Known { cells: "a_model_error_500_is_reported/codex/*", whose: Whose::Agent, why: NO_RESPONSE },
    Known { cells: "a_silent_turn_ends_by_its_idle_limit/codex/*", whose: Whose::Agent, why: NO_RESPONSE },
];

/// Patterns of the cells of CI. All of them were green in twenty runs in a row, on a busy machine.
pub(crate) const CI: &[&str] = &[
    "a_subscriber_allows_a_command/*/released",
    "two_thousand_chunks_come_in_order_before_the_outcome/gemini/released",
    "two_thousand_chunks_come_in_order_before_the_outcome/qwen/released",
    "a_key_is_enough_to_log_in/claude/*",
    "two_thousand_chunks_come_in_order_before_the_outcome/claude/*",
    "thoughts_are_reported_as_thoughts/claude/*",
    "a_new_file_shows_its_diff/claude/*",
    "a_tool_server_is_used/claude/mock",
    "a_session_is_forked/claude/mock",
    "a_key_is_enough_to_log_in/codex/*",
    "a_missing_key_is_reported/codex/*",
    "two_thousand_chunks_come_in_order_before_the_outcome/codex/*",
    "thoughts_are_reported_as_thoughts/codex/*",
    "an_image_reaches_the_model/codex/*",
    "two_sessions_have_a_turn_at_once/codex/*",
    "usage_is_reported/codex/*",
    "a_subscriber_allows_a_command/codex/mock",
    "a_subscriber_refuses_a_command/codex/*",
    "bypass_runs_a_command_unasked/codex/*",
    "deny_runs_no_command/codex/*",
    "accept_edits_allows_a_file_and_asks_for_a_command/codex/*",
    "a_new_file_shows_its_diff/codex/*",
    "a_tool_server_is_used/codex/*",
    "a_cancel_in_mid_stream/codex/*",
    "a_cancel_with_an_open_permission/codex/*",
    "a_dropped_turn_stops/codex/*",
    "the_model_is_set/codex/*",
    "an_option_is_set/codex/*",
    "sessions_are_listed/codex/*",
    "a_session_is_loaded_with_its_history/codex/*",
    "a_session_is_resumed/codex/*",
    "a_session_is_closed/codex/*",
    "a_model_error_400_is_reported/codex/*",
    "a_killed_agent_is_reported_and_loads_its_session_again/codex/*",
    "a_stored_session_continues_after_the_agent_was_killed/codex/*",
    "a_stored_session_continues_after_its_program_was_killed/codex/released",
    "a_permission_handler_decides/codex/*",
    "the_reader_of_a_turn_decides/codex/*",
    "an_edit_shows_its_diff/codex/*",
    "an_immediate_cancel_withdraws_the_prompt/codex/*",
    "a_cancel_right_after_the_prompt_was_sent/codex/*",
    "a_cancel_after_the_model_was_asked/codex/*",
    "a_cancel_of_the_prompt_after_a_cancelled_one/codex/*",
    "a_session_has_the_model_and_mode_it_was_made_with/codex/*",
    "the_mode_is_set/codex/*",
    "a_remaining_agent_is_killed_from_inside_the_sandbox/codex/released",
];

/// The known failure of a cell.
pub(crate) fn failure(cell: &Cell) -> Option<&'static Known> {
    KNOWN.iter().find(|known| matches(known.cells, cell))
}

/// The rare defect of a cell.
pub(crate) fn rare(cell: &Cell) -> Option<&'static Known> {
    RARE.iter().find(|known| matches(known.cells, cell))
}

/// Whether CI runs a cell.
pub(crate) fn in_ci(cell: &Cell) -> bool {
    CI.iter().any(|pattern| matches(pattern, cell))
}

/// Whether a cell is of this pattern: `ROW/AGENT/FACE`, with `*` for any.
pub(crate) fn matches(pattern: &str, cell: &Cell) -> bool {
    let name = cell.to_string();
    pattern.split('/').zip(name.split('/')).all(|(pattern, part)| pattern == "*" || pattern == part)
}
