//! The parameters of agent requests, and the memory that all of them use.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// A budget that several holders share: of memory, or of their number. Open agent requests have one, and so has the
/// output of terminals.
#[derive(Debug)]
pub(crate) struct Admission {
    bound: usize,
    bytes: AtomicUsize,
}

impl Admission {
    pub(crate) fn new(bound: usize) -> Self {
        Self { bound, bytes: AtomicUsize::new(0) }
    }

    /// Reserves a part; `None` if the limit would be exceeded.
    pub(crate) fn admit(self: &Arc<Self>, bytes: usize) -> Option<Admitted> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bound);
        self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Admitted { admission: Arc::clone(self), bytes })
    }
}

/// The reserved part of one holder. Dropping this releases it.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    bytes: usize,
}

impl Admitted {
    /// Releases what exceeds this size.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        self.admission.bytes.fetch_sub(excess, Ordering::AcqRel);
        self.bytes -= excess;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// The parameters of a request. They count towards the limit while they are in memory.
#[derive(Debug)]
pub(crate) struct Params {
    /// The id of the request, as text.
    id: String,
    value: Value,
    admitted: Admitted,
}

impl Params {
    pub(crate) fn new(id: String, value: Value, admitted: Admitted) -> Self {
        Self { id, value, admitted }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns how much they count, in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.admitted.bytes
    }
}

impl Deref for Params {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Admission;

    #[test]
    fn requests_are_admitted_up_to_the_limit_and_release_memory_on_drop() {
        let admission = Arc::new(Admission::new(10));
        let below = admission.admit(9).unwrap();
        assert!(admission.admit(2).is_none(), "above");
        let at = admission.admit(1).unwrap();
        assert!(admission.admit(1).is_none());
        drop(below);
        assert!(admission.admit(10).is_none());
        drop(at);
        assert!(admission.admit(10).is_some());
        assert!(admission.admit(11).is_none() && admission.admit(usize::MAX).is_none());
    }

    #[test]
    fn a_part_that_shrinks_releases_the_rest_once() {
        let admission = Arc::new(Admission::new(10));
        let mut part = admission.admit(10).unwrap();
        part.shrink_to(12);
        assert!(admission.admit(1).is_none(), "it does not grow");
        part.shrink_to(4);
        part.shrink_to(4);
        assert!(admission.admit(7).is_none());
        let rest = admission.admit(6).unwrap();
        drop((part, rest));
        assert!(admission.admit(10).is_some() && admission.admit(11).is_none());
    }
}
