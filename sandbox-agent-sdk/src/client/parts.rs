//! The options of optional parts of the crate, which the client does not know.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::requests::Requests;

/// The options of one optional part.
pub(crate) trait Part: Any + fmt::Debug + Send + Sync {
    /// Registers the handlers of the part when a client is created.
    fn register(&self, requests: &Requests);
}

/// The options of all optional parts, one value of each type.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts(Vec<Arc<dyn Part>>);

impl Parts {
    /// Changes the options of a part.
    pub(crate) fn change<T: Part + Clone + Default>(&mut self, change: impl FnOnce(&mut T)) {
        let position = self.0.iter().position(|part| as_any(part).is::<T>());
        let known = position.map(|position| self.0.swap_remove(position));
        let mut part = known.and_then(|part| as_any(&part).downcast_ref::<T>().cloned()).unwrap_or_default();
        change(&mut part);
        self.0.push(Arc::new(part));
    }

    /// Registers the handlers of all parts.
    pub(super) fn register(&self, requests: &Requests) {
        self.0.iter().for_each(|part| part.register(requests));
    }
}

fn as_any(part: &Arc<dyn Part>) -> &dyn Any {
    &**part
}
