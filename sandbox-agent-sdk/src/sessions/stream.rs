//! How far a stream has been read that other programs read too.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::store::{life_of, number_of, place_of};

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

    pub(super) fn reached(&self) -> Option<u64> {
        self.last().and_then(number_of)
    }

    /// Whether this very event was read here, in this life of the server. Nobody can tell of the beginning.
    pub(super) fn has_read(&self, place: &str) -> bool {
        place == Self::BEGINNING || self.places.iter().any(|known| known == place)
    }

    /// The places of what others have stored under these ids and that are yet to come here, because others read their
    /// stream more quickly. This program had read up to this number when they could write last.
    ///
    /// What is of another life of the server, which gave the same numbers to other events, will not come. It is told by
    /// an event that is another one here; and by a number that the stream has not come to, if it has come to the answer
    /// of a call that was made since (`is_ordered`). Without that, whoever wrote last is taken to have seen this life.
    pub(super) fn ahead(&self, ids: &[String], read: Option<u64>, is_ordered: bool) -> HashSet<String> {
        let known: HashMap<u64, &str> =
            self.places.iter().filter_map(|place| Some((number_of(place)?, place.as_str()))).collect();
        let mut lives: BTreeMap<Option<&str>, Vec<(u64, &str)>> = BTreeMap::new();
        let mut newest = None;
        for id in ids {
            let (life, place) = (life_of(id), place_of(id));
            if let Some(number) = number_of(place) {
                lives.entry(life).or_default().push((number, place));
                newest = life;
            }
        }
        let mut ahead = HashSet::new();
        for (life, places) in lives {
            let is_other =
                |(number, place): &(u64, &str)| known.get(number).is_some_and(|known| known != place);
            let furthest = places.iter().map(|(number, _)| *number).max();
            let is_beyond = furthest > self.reached() && (is_ordered || life != newest);
            if !is_beyond && !places.iter().any(is_other) {
                let to_come = places.into_iter().filter(|(number, _)| Some(*number) > read);
                ahead.extend(to_come.map(|(_, place)| place.to_owned()));
            }
        }
        ahead
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
        assert!(stream.has_read("3-a") && !stream.has_read("3-b") && !stream.has_read("4-a"));
        assert_eq!(stream.until("5-b"), Some(5));
        assert_eq!(stream.until("9-z"), Some(9), "it was not read here yet");
        assert_eq!(stream.until("3-other"), None);
        assert_eq!(stream.until("nowhere"), None);
        assert_eq!(stream.until(Stream::BEGINNING), Some(0));
    }

    fn ahead(ids: &[&str], read: u64, is_ordered: bool) -> Vec<String> {
        let mut stream = Stream::default();
        ["3-a", "4-b", "5-c", "6-d"].into_iter().for_each(|place| stream.pass(place));
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let mut ahead: Vec<_> = stream.ahead(&ids, Some(read), is_ordered).into_iter().collect();
        ahead.sort_unstable();
        ahead
    }

    #[test]
    fn what_others_have_stored_of_this_life_of_the_server_is_not_news() {
        // An earlier life, as its numbers show, takes nothing from this one.
        let stored = ["1.0:3-x", "1.0:900-y", "1.1:4-b", "1.1:5-c", "1.1:6-d", "1.1:own"];
        assert_eq!(ahead(&stored, 4, true), ["5-c", "6-d"]);
        assert_eq!(ahead(&stored, 4, false), ["5-c", "6-d"]);
        // An earlier life that was shorter than this one is told by what is another event here.
        assert_eq!(ahead(&["1.0:3-x", "1.0:6-d", "2.0:5-c"], 4, true), ["5-c"]);
    }

    #[test]
    fn a_number_beyond_the_stream_is_of_an_earlier_life_unless_the_stream_lags() {
        let stored = ["1.0:5-c", "1.0:8-e", "2.0:6-d", "2.0:9-f"];
        assert_eq!(ahead(&stored, 4, true), [""; 0]);
        assert_eq!(ahead(&stored, 4, false), ["6-d", "9-f"], "it may be yet to come");
        assert_eq!(ahead(&["2.0:own"], 4, false), [""; 0]);
    }
}
