//! Who may send the first POST.

use tokio::sync::watch;

/// Lets one POST through with the bootstrap query, and the others after the server accepted it.
#[derive(Debug)]
pub(crate) struct Gate {
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No POST has been accepted yet.
    Closed,
    /// The first POST is being sent.
    Passing,
    Open,
}

/// The right to send the first POST. Dropping it passes the right on.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
}

impl Gate {
    pub(crate) fn new(needed: bool) -> Self {
        Self { state: watch::Sender::new(if needed { State::Closed } else { State::Open }) }
    }

    /// Waits until a message may be sent; `Some` if it is the one that carries the query.
    pub(crate) async fn enter(&self) -> Option<Pass<'_>> {
        if self.is_open() {
            return None;
        }
        let mut changes = self.state.subscribe();
        loop {
            let mut first = false;
            self.state.send_if_modified(|state| {
                first = *state == State::Closed;
                if first {
                    *state = State::Passing;
                }
                first
            });
            if first {
                return Some(Pass { gate: self });
            }
            if *self.state.borrow() == State::Open {
                return None;
            }
            // The sender is `self`, so waiting cannot fail.
            let _ = changes.wait_for(|state| *state != State::Passing).await;
        }
    }

    /// The first message is known to have been accepted.
    pub(crate) fn open(&self) {
        if !self.is_open() {
            self.state.send_replace(State::Open);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.state.borrow() == State::Open
    }

    /// Waits until the first message is being sent.
    pub(crate) async fn used(&self) {
        let _ = self.state.subscribe().wait_for(|state| *state != State::Closed).await;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.gate.state.send_if_modified(|state| {
            let unfinished = *state == State::Passing;
            if unfinished {
                *state = State::Closed;
            }
            unfinished
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_passes_first_and_the_others_follow() {
        let gate = Gate::new(true);
        let pass = gate.enter().await.expect("the first one carries the query");
        let second = async { gate.enter().await.is_none() };
        let first = async {
            gate.open();
            drop(pass);
        };
        assert!(tokio::join!(second, first).0);
        assert!(gate.enter().await.is_none());
    }

    #[tokio::test]
    async fn a_first_one_that_fails_passes_its_right_on() {
        let gate = Gate::new(true);
        drop(gate.enter().await);
        assert!(gate.enter().await.is_some());
        assert!(Gate::new(false).enter().await.is_none());
    }
}
