//! The events that were seen before a request was made.

use std::collections::VecDeque;

/// How many changes are remembered. A request that is older has no floor.
const FLOORS: usize = 256;

/// The highest event number that was seen before each request of this client was made. In one incarnation of a server
/// the response to a request has a higher number.
#[derive(Debug, Default)]
pub(super) struct Floors(VecDeque<Floor>);

#[derive(Debug, Clone, Copy)]
struct Floor {
    /// The number of the next request at that time.
    next_request: u64,
    event: u64,
}

impl Floors {
    /// Records an event that was seen before the request `next_request` was made.
    pub(super) fn seen(&mut self, next_request: u64, event: u64) {
        match self.0.back_mut() {
            Some(floor) if floor.next_request == next_request => floor.event = floor.event.max(event),
            _ => {
                if self.0.len() == FLOORS {
                    self.0.pop_front();
                }
                self.0.push_back(Floor { next_request, event });
            }
        }
    }

    /// The highest event number that was seen before this request was made, as far as it is remembered.
    pub(super) fn of(&self, request: u64) -> u64 {
        let later = self.0.partition_point(|floor| floor.next_request <= request);
        later.checked_sub(1).and_then(|place| self.0.get(place)).map_or(0, |floor| floor.event)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_floor_of_the_events_before_it() {
        let mut floors = Floors::default();
        floors.seen(1, 5);
        floors.seen(1, 7);
        floors.seen(4, 9);
        assert_eq!([0, 1, 3, 4, 9].map(|request| floors.of(request)), [0, 7, 7, 9, 9]);
        for request in 5..5000 {
            floors.seen(request, 10);
        }
        assert_eq!((floors.of(3), floors.0.len()), (0, FLOORS));
    }
}
