use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The one place for a reader.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seat(Arc<AtomicBool>);

impl Seat {
    /// Sits down, unless somebody does already. `on_leave` runs when the reader goes.
    pub(crate) fn take(&self, on_leave: impl FnOnce() + Send + 'static) -> Option<Seated> {
        let free = !self.0.swap(true, Ordering::SeqCst);
        free.then(|| Seated { seat: self.clone(), on_leave: Some(Box::new(on_leave)) })
    }

    /// Whether somebody sits there.
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// A taken [`Seat`]; free again when this goes.
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
