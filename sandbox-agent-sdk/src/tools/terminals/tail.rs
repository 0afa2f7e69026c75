//! The end of a process's output.

use std::collections::VecDeque;

/// How many bytes of a character can follow its first byte.
const CONTINUATION: usize = 3;

/// The last bytes of an output, up to a limit, and its total size.
#[derive(Debug)]
pub(crate) struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
    total: u64,
    /// Whether the output is complete.
    complete: bool,
}

/// The end of an output as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TailText {
    pub(crate) text: String,
    /// Whether earlier output was dropped.
    pub(crate) truncated: bool,
}

impl Tail {
    pub(crate) fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::new(), limit, total: 0, complete: false }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let kept = &bytes[bytes.len().saturating_sub(self.limit)..];
        let excess = (self.bytes.len() + kept.len()).saturating_sub(self.limit);
        self.bytes.drain(..excess);
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        if length + kept.len() > capacity {
            // Doubled as usual, but never beyond the limit, because budgets count the limit.
            let capacity = (length + kept.len()).max(self.limit.min(2 * capacity));
            self.bytes.reserve_exact(capacity - length);
        }
        self.bytes.extend(kept);
    }

    /// Marks the output as complete: an incomplete character at the end remains incomplete. Frees unused memory.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
        self.bytes.shrink_to_fit();
    }

    /// Returns the last bytes as text: at most `limit`, and at most the buffered ones.
    ///
    /// The text begins with a complete character. Invalid UTF-8 becomes replacement characters, which count
    /// towards the limit. An incomplete character at the end is withheld until it is complete; that does not
    /// count as truncation.
    pub(crate) fn text(&self, limit: Option<usize>) -> TailText {
        let limit = limit.unwrap_or(self.limit).min(self.limit);
        let start = self.bytes.len().saturating_sub(limit);
        let mut bytes: Vec<u8> = self.bytes.range(start..).copied().collect();
        let mut truncated = self.total > bytes.len() as u64;
        if truncated {
            let stray = bytes.iter().take(CONTINUATION).take_while(|byte| is_continuation(**byte)).count();
            bytes.drain(..stray);
        }
        if !self.complete {
            bytes.truncate(bytes.len() - unfinished(&bytes));
        }
        let mut text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        if text.len() > limit {
            let cut = (text.len() - limit..=text.len()).find(|at| text.is_char_boundary(*at));
            text.drain(..cut.unwrap_or(text.len()));
            truncated = true;
        }
        TailText { text, truncated }
    }

    /// Returns how many bytes of memory it takes: at most the limit.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns how many bytes at the end belong to an incomplete character.
fn unfinished(bytes: &[u8]) -> usize {
    // A character has at most four bytes.
    let end = &bytes[bytes.len().saturating_sub(CONTINUATION + 1)..];
    match end.utf8_chunks().last() {
        // An incomplete character may still become valid.
        Some(chunk) if !chunk.invalid().is_empty() => {
            let invalid = chunk.invalid();
            let wanted = match invalid[0] {
                0xC2..=0xDF => 2,
                0xE0..=0xEF => 3,
                0xF0..=0xF4 => 4,
                _ => return 0,
            };
            if invalid.len() < wanted { invalid.len() } else { 0 }
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Tail, TailText};

    fn tail(limit: usize, pieces: &[&[u8]]) -> Tail {
        let mut tail = Tail::new(limit);
        pieces.iter().for_each(|piece| tail.push(piece));
        tail
    }

    fn shown(text: &str, truncated: bool) -> TailText {
        TailText { text: text.to_owned(), truncated }
    }

    #[test]
    fn the_tail_starts_with_a_complete_character() {
        let crab = "a🦀b".as_bytes();
        assert_eq!(tail(6, &[crab]).text(None), shown("a🦀b", false));
        assert_eq!(tail(5, &[crab]).text(None), shown("🦀b", true));
        for limit in 1..5 {
            assert_eq!(tail(limit, &[crab]).text(None), shown("b", true), "{limit}");
        }
        assert_eq!(tail(0, &[crab]).text(None), shown("", true));
        assert_eq!(tail(0, &[]).text(None), shown("", false));
    }

    #[test]
    fn a_call_can_ask_for_less_and_not_for_more() {
        let tail = tail(4, &[b"abc", b"def"]);
        assert_eq!(tail.text(Some(2)), shown("ef", true));
        assert_eq!(tail.text(Some(0)), shown("", true));
        assert_eq!(tail.text(Some(99)), shown("cdef", true));
        assert_eq!(tail.text(None), shown("cdef", true));
    }

    #[test]
    fn an_incomplete_character_is_withheld_until_it_is_complete() {
        let mut tail = tail(100, &[b"a\xF0\x9F"]);
        assert_eq!(tail.text(None), shown("a", false));
        tail.push(b"\xA6\x80");
        assert_eq!(tail.text(None), shown("a🦀", false));
        tail.push(b"\xC3");
        tail.complete();
        assert_eq!(tail.text(None), shown("a🦀\u{FFFD}", false));
    }

    #[test]
    fn invalid_utf8_is_replaced_within_the_limit() {
        assert_eq!(tail(100, &[b"a\xFFb"]).text(None), shown("a\u{FFFD}b", false));
        assert_eq!(tail(4, &[b"\xFF\xFF\xFF\xFF"]).text(None), shown("\u{FFFD}", true));
        assert_eq!(tail(2, &[b"\xFF"]).text(None), shown("", true));
    }

    #[test]
    fn no_more_is_buffered_than_the_limit() {
        let mut tail = Tail::new(1000);
        for _ in 0..10_000 {
            tail.push(&[b'x'; 777]);
        }
        assert!(tail.memory() <= 1000, "{}", tail.memory());
        tail.push(&vec![b'y'; 1 << 20]);
        assert!(tail.memory() <= 1000, "{}", tail.memory());
        assert_eq!(tail.text(None), shown(&"y".repeat(1000), true));
    }

    proptest! {
        /// The longest suffix that begins with a complete character, computed in the simplest way.
        #[test]
        fn text_is_cut_like_a_simple_reference_implementation(text in "[a-cé€🦀]{0,30}", limit in 0usize..60, call in proptest::option::of(0usize..60), size in 1usize..7) {
            let mut tail = Tail::new(limit);
            text.as_bytes().chunks(size).for_each(|piece| tail.push(piece));
            let limit = call.unwrap_or(limit).min(limit);
            let at = (0..=text.len()).find(|at| text.is_char_boundary(*at) && text.len() - at <= limit).unwrap();
            prop_assert_eq!(tail.text(call), shown(&text[at..], at > 0));
        }

        #[test]
        fn any_bytes_give_the_end_of_their_text(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xC0, Just(b'a'), Just(0xF0), Just(0xE2)], 0..40), limit in 0usize..60, size in 1usize..7) {
            let mut tail = Tail::new(limit);
            bytes.chunks(size).for_each(|piece| tail.push(piece));
            tail.complete();
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            let end = tail.text(None);
            prop_assert!(end.text.len() <= limit);
            prop_assert!(whole.ends_with(&end.text), "{:?} {:?}", whole, end.text);
            prop_assert_eq!(end.truncated, end.text != whole);
        }

        #[test]
        fn text_shown_early_is_a_prefix_of_the_final_text(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xC0, Just(0xF0), Just(0xE2), Just(0xC3)], 0..20), more in proptest::collection::vec(any::<u8>(), 0..6)) {
            let mut tail = Tail::new(1000);
            tail.push(&bytes);
            let before = tail.text(None);
            prop_assert!(!before.truncated);
            tail.push(&more);
            tail.complete();
            prop_assert!(tail.text(None).text.starts_with(&before.text));
        }
    }
}
