//! How far a stream has been read that other programs read too.

use std::collections::VecDeque;

use crate::store::number_of;

/// How many places are remembered: no server keeps more for those who come late.
const REMEMBERED: usize = 2048;

/// The places of a stream that were read, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Stream {
    places: VecDeque<String>,
}

impl Stream {
    /// The place before all others.
    pub(super) const BEGINNING: &str = "0-";

    pub(super) fn pass(&mut self, place: &str) {
        // What an agent asks is known by its id, and has no number.
        if number_of(place).is_none_or(|number| number == 0) {
            return;
        }
        if self.places.len() == REMEMBERED {
            self.places.pop_front();
        }
        self.places.push_back(place.to_owned());
    }

    pub(super) fn last(&self) -> Option<&str> {
        self.places.back().map(String::as_str)
    }

    /// Up to which number what was read here came before this place, where another program had read to; `None` if that
    /// one had read another stream, because the server began anew in between.
    pub(super) fn until(&self, place: &str) -> Option<u64> {
        let number = number_of(place)?;
        let known = self.places.iter().find(|known| number_of(known) == Some(number));
        known.is_none_or(|known| known == place).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::Stream;

    #[test]
    fn a_place_of_another_stream_is_no_place() {
        let mut stream = Stream::default();
        ["3-a", "0-ask", "5-b", "ended"].into_iter().for_each(|place| stream.pass(place));
        assert_eq!(stream.last(), Some("5-b"));
        assert_eq!(stream.until("5-b"), Some(5));
        assert_eq!(stream.until("9-z"), Some(9), "it was not read here yet");
        assert_eq!(stream.until("3-other"), None);
        assert_eq!(stream.until("nowhere"), None);
        assert_eq!(stream.until(Stream::BEGINNING), Some(0));
    }
}
