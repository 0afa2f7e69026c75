use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::agent::Running;

/// How long agents may take to exit after their input was closed. They may write their state to disk.
const INPUT_GRACE: Duration = Duration::from_secs(1);

/// How long agents may take to exit after SIGTERM, which SIGKILL follows after the grace period of each.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// The agents of a server, on all endpoints, until they exit.
pub(crate) struct Agents {
    numbers: AtomicU64,
    /// An agent that is being launched has no handle yet. The owner of the agent holds it, so that it ends with its
    /// owner.
    all: watch::Sender<BTreeMap<u64, Option<Weak<dyn Running>>>>,
}

impl Agents {
    /// Adds an agent that is being launched.
    pub(crate) fn begin(&self) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.all.send_modify(|all| drop(all.insert(number, None)));
        number
    }

    /// Sets the handle of an agent that was launched. It may have exited already.
    pub(crate) fn launched(&self, number: u64, running: &Arc<dyn Running>) {
        self.all.send_modify(|all| {
            if let Some(handle) = all.get_mut(&number) {
                *handle = Some(Arc::downgrade(running));
            }
        });
    }

    /// Removes an agent that has exited or was not launched.
    pub(crate) fn remove(&self, number: u64) {
        self.all.send_modify(|all| drop(all.remove(&number)));
    }

    /// Ends all agents: closes their inputs, terminates those that do not exit, and waits for all of them.
    pub(crate) async fn end(&self) {
        let handle = |(number, running): (&u64, &Option<Weak<dyn Running>>)| {
            Some((*number, running.as_ref()?.upgrade()?))
        };
        let running: BTreeMap<u64, Arc<dyn Running>> = self.all.borrow().iter().filter_map(handle).collect();
        running.values().for_each(|agent| agent.close_input());
        if self.have_exited(&running, INPUT_GRACE).await {
            return;
        }
        running.values().for_each(|agent| agent.terminate());
        if !self.have_exited(&running, EXIT_LIMIT).await {
            tracing::warn!("agents did not exit within {EXIT_LIMIT:?}");
        }
    }

    async fn have_exited(&self, agents: &BTreeMap<u64, Arc<dyn Running>>, limit: Duration) -> bool {
        let mut all = self.all.subscribe();
        let gone = all.wait_for(|all| agents.keys().all(|number| !all.contains_key(number)));
        tokio::time::timeout(limit, gone).await.is_ok()
    }
}

impl Default for Agents {
    fn default() -> Self {
        Self { numbers: AtomicU64::new(0), all: watch::Sender::new(BTreeMap::new()) }
    }
}

impl fmt::Debug for Agents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Agents").field("count", &self.all.borrow().len()).finish_non_exhaustive()
    }
}
