//! Decodes bytes to text across chunk boundaries.

/// Decodes UTF-8 that arrives in chunks. Replaces invalid bytes with U+FFFD.
///
/// A character that is split across two chunks is decoded correctly. The text equals
/// [`String::from_utf8_lossy`] of all bytes, wherever the chunk boundaries are.
///
/// ```
/// use sandbox_agent_sdk::control::processes::LossyText;
///
/// let mut text = LossyText::new();
/// assert_eq!(text.push(b"caf\xc3"), "caf");
/// assert_eq!(text.push(b"\xa9"), "é");
/// assert_eq!(text.finish(), "");
/// ```
#[derive(Debug, Clone, Default)]
pub struct LossyText {
    /// The beginning of an incomplete character, at most three bytes.
    partial: Vec<u8>,
}

impl LossyText {
    /// Creates a decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes these bytes up to the last complete character.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let mut text = String::with_capacity(joined.len());
        let mut rest = joined.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(error) => {
                    let (valid, invalid) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        self.partial = invalid.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &invalid[length..];
                }
            }
        }
    }

    /// Ends the stream. Returns U+FFFD if it ended inside a character.
    pub fn finish(&mut self) -> String {
        let partial = std::mem::take(&mut self.partial);
        String::from_utf8_lossy(&partial).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cut_gives_the_same_text() {
        let samples: [&[u8]; 6] = [
            "plain, é, 日本語, 🦀!".as_bytes(),
            b"broken \xff\xfe bytes",
            b"\xf0\x9f\xa6",
            b"\xe6\x97 \xc3\xc3\xa9",
            b"",
            b"\xed\xa0\x80 surrogate \xf4\x90\x80\x80",
        ];
        for sample in samples {
            let whole = String::from_utf8_lossy(sample);
            for first in 0..=sample.len() {
                for second in first..=sample.len() {
                    let mut text = LossyText::new();
                    let mut decoded = text.push(&sample[..first]);
                    decoded += &text.push(&sample[first..second]);
                    decoded += &text.push(&sample[second..]);
                    decoded += &text.finish();
                    assert_eq!(decoded, whole, "{sample:?} cut at {first} and {second}");
                }
            }
        }
    }
}
