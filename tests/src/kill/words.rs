//! How prompts and words are written.

/// How many words an agent says in each turn.
pub(super) const WORDS: u32 = 12;

/// The name of a session.
pub(super) fn session_name(number: usize) -> String {
    format!("s{number:02}")
}

/// The text of a prompt, which names its session. No other prompt has it.
pub(super) fn prompt_text(session: &str, run: u64, number: u32) -> String {
    format!("{session}.{run}.{number}")
}

/// The session that a prompt names.
pub(super) fn session_of(prompt: &str) -> &str {
    prompt.split_once('.').map_or(prompt, |(session, _)| session)
}

/// A word of the answer to a prompt, from 1.
pub(super) fn word(prompt: &str, number: u32) -> String {
    format!("{prompt}#{number} ")
}

/// The prompt and the number of a word.
pub(super) fn parse_word(word: &str) -> Option<(&str, u32)> {
    let (prompt, number) = word.trim_end().split_once('#')?;
    Some((prompt, number.parse().ok()?))
}

/// Whether the agent requests a permission in the middle of the answer: one prompt of four.
pub(super) fn asks(prompt: &str) -> bool {
    let hash = prompt.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    hash % 4 == 0
}
