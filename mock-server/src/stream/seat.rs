use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The slot of a single reader.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seat(Arc<AtomicBool>);

impl Seat {
    /// Takes the slot, unless it is taken. `on_leave` runs when the reader is dropped.
    pub(crate) fn take(&self, on_leave: impl FnOnce() + Send + 'static) -> Option<Seated> {
        let free = !self.0.swap(true, Ordering::SeqCst);
        free.then(|| Seated { seat: self.clone(), on_leave: Some(Box::new(on_leave)) })
    }

    /// Whether the slot is taken.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A taken [`Seat`]. Dropping it frees the slot.
pub(crate) struct Seated {
    seat: Seat,
    on_leave: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        self.seat.0.store(false, Ordering::SeqCst);
        if let Some(on_leave) = self.on_leave.take() {
            on_leave();
        }
    }
}
