use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::entry::{Entry, Line, Orphans};
use crate::agent::Output;
use crate::control::ControlPlane;
use crate::problem::Problem;
use crate::server::Core;

/// A slot of the table. The cell is empty while its agent is starting.
struct Slot {
    agent: String,
    entry: Arc<OnceCell<Arc<Entry>>>,
}

/// All server ids.
pub(crate) struct Table {
    pub(super) core: Arc<Core>,
    control: ControlPlane,
    /// Guards the map only.
    slots: Mutex<BTreeMap<String, Slot>>,
    orphans: Orphans,
    /// Numbers the entries, so that an orphan can be identified when it exits.
    entries: AtomicU64,
}

impl Table {
    pub(crate) fn new(core: Arc<Core>, control: ControlPlane) -> Arc<Self> {
        let orphans = Orphans::default();
        Arc::new(Self { core, control, slots: Mutex::default(), orphans, entries: AtomicU64::new(0) })
    }

    /// Returns the entry of `id`. If there is none and the request names an agent, creates it and starts the
    /// agent.
    pub(super) async fn entry(&self, id: &str, agent: Option<&str>) -> Result<Arc<Entry>, Problem> {
        if let Some(agent) = agent
            && self.core.recipe(agent).is_none()
        {
            return Err(Problem::unsupported_agent(agent));
        }
        let (agent, cell) = {
            let mut slots = self.lock();
            match (slots.get(id), agent) {
                (Some(slot), Some(wanted)) if slot.agent != wanted => {
                    return Err(Problem::conflict(format!(
                        "server '{id}' already exists for agent '{}'; requested '{wanted}'",
                        slot.agent
                    )));
                }
                (Some(slot), _) => (slot.agent.clone(), Arc::clone(&slot.entry)),
                (None, Some(agent)) => {
                    let entry = Arc::default();
                    let slot = Slot { agent: agent.to_owned(), entry: Arc::clone(&entry) };
                    slots.insert(id.to_owned(), slot);
                    (agent.to_owned(), entry)
                }
                (None, None) => {
                    return Err(Problem::invalid_request(format!(
                        "missing required 'agent' query parameter for first POST to /v1/acp/{id}"
                    )));
                }
            }
        };
        let made = cell.get_or_try_init(|| self.start(&agent)).await.cloned();
        if made.is_err() {
            self.lock().retain(|_, slot| !(Arc::ptr_eq(&slot.entry, &cell) && cell.get().is_none()));
        }
        made
    }

    async fn start(&self, agent: &str) -> Result<Arc<Entry>, Problem> {
        if !self.control.is_installed(agent) {
            // The mock is built into the released server and never installed; only its launcher may be
            // missing.
            if agent == "mock" {
                let message = "failed to start agent process: No such file or directory (os error 2)";
                return Err(Problem::stream_error(message));
            }
            if self.core.config.require_preinstall {
                return Err(Problem::agent_not_installed(agent));
            }
            self.control.set_installed(agent, true);
        }
        let recipe = self.core.recipe(agent).ok_or_else(|| Problem::unsupported_agent(agent))?;
        let number = self.entries.fetch_add(1, Ordering::SeqCst);
        let line = Arc::new(Line::new(self.core.new_log()));
        let sink = {
            let (line, orphans) = (Arc::clone(&line), Arc::downgrade(&self.orphans));
            move |output| {
                let exits = matches!(output, Output::Exited(_));
                line.output(output);
                if exits && let Some(orphans) = orphans.upgrade() {
                    let mut orphans = orphans.lock().unwrap_or_else(PoisonError::into_inner);
                    let gone: Vec<_> = orphans.extract_if(.., |(own, _)| *own == number).collect();
                    drop(orphans);
                    drop(gone);
                }
            }
        };
        let launched = self.core.launch(&*recipe, sink).await;
        let running = launched
            .map_err(|error| Problem::stream_error(format!("failed to start agent process: {}", error.0)))?;
        let orphans = Arc::clone(&self.orphans);
        let created_at = now();
        Ok(Arc::new(Entry { agent: agent.to_owned(), created_at, line, running, orphans, number }))
    }

    /// Returns the entry of `id`, if its agent was started.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.lock().get(id)?.entry.get().cloned()
    }

    /// Removes the entry of `id` from the table.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<Entry>> {
        self.lock().remove(id)?.entry.get().cloned()
    }

    /// Publishes a value on the stream of `id`. Returns whether the entry exists.
    pub(crate) fn emit(&self, id: &str, value: &Value) -> bool {
        self.get(id).map(|entry| entry.line.log.publish(value.to_string())).is_some()
    }

    /// Kills the agent of `id`. Returns whether the entry exists.
    pub(crate) fn kill(&self, id: &str) -> bool {
        self.get(id).map(|entry| entry.running.kill()).is_some()
    }

    /// Returns the list of `GET /v1/acp`, including dead agents.
    pub(super) fn list(&self) -> Vec<Value> {
        let slots = self.lock();
        let entries = slots.iter().filter_map(|(id, slot)| Some((id, slot.entry.get()?)));
        entries
            .map(|(id, entry)| {
                json!({ "serverId": id, "agent": entry.agent, "createdAtMs": entry.created_at })
            })
            .collect()
    }

    /// Returns the age of an agent's oldest entry, dead or alive.
    pub(crate) fn uptime(&self, agent: &str) -> Option<Duration> {
        let slots = self.lock();
        let entries = slots.values().filter_map(|slot| slot.entry.get());
        let oldest = entries.filter(|entry| entry.agent == agent).map(|entry| entry.created_at).min()?;
        Some(Duration::from_millis(now().saturating_sub(oldest)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Table").finish_non_exhaustive()
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
