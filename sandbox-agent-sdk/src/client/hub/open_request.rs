//! An agent request that is being served.

use std::sync::Arc;

use tokio::sync::watch;

use super::progress::Progress;

/// A guard: an agent request of a session waits for its response while it exists.
///
/// It may be dropped while the hub is locked.
#[derive(Debug)]
pub(in crate::client) struct OpenRequest(Arc<watch::Sender<Progress>>);

impl OpenRequest {
    pub(super) fn new(progress: &Arc<watch::Sender<Progress>>) -> Self {
        progress.send_modify(Progress::request);
        Self(Arc::clone(progress))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.send_modify(Progress::responded);
    }
}
