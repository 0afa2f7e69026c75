//! What the server and its agents support, from what they advertise and from earlier calls.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::connection::Connection;
use super::names;
use crate::ServerKind;
use crate::connection::{Capabilities, Feature, Support};
use crate::extensions::Extension;

/// Which optional methods exist, as calls have shown, by agent and method. An endpoint may have several agents.
#[derive(Debug, Default)]
pub(super) struct Learned {
    /// Guards the known results; held for a look-up or a change.
    methods: Mutex<HashMap<(String, String), bool>>,
}

impl Learned {
    /// Returns whether a method of an agent exists, if a call has shown it.
    pub(super) fn get(&self, agent: &str, method: &str) -> Option<bool> {
        self.lock().get(&(agent.to_owned(), method.to_owned())).copied()
    }

    pub(super) fn note(&self, agent: &str, method: &str, there: bool) {
        self.lock().insert((agent.to_owned(), method.to_owned()), there);
    }

    /// The agent or the server restarted and may have other capabilities.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), bool>> {
        self.methods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Returns whether the agent of this connection, or its server, supports a feature.
    pub(super) fn supports(&self, feature: Feature) -> Support {
        let Some(can) = self.capabilities() else { return Support::Unknown };
        let tried = |method: &str, said: Support| {
            self.shared.learned.get(self.agent(), method).map_or(said, Support::said)
        };
        let extension = |extension: Extension| {
            let said = advertised(&can, extension);
            extension.method().map_or(said, |method| tried(method, said))
        };
        // The protocol requires every agent to declare whether it can load sessions. Some agents have other abilities
        // without declaring them.
        let load = tried(names::LOAD, Support::said(can.load_session));
        let set_option = tried(names::SET_OPTION, Support::Unknown);
        match feature {
            Feature::LoadSession => load,
            Feature::ResumeSession => tried(names::RESUME, Support::hinted(can.resume_session)).or(load),
            Feature::ForkSession => tried(names::FORK, Support::hinted(can.fork_session)),
            Feature::ListSessions => {
                // Only released servers leave the listing to their agents.
                let by_server = Support::said(can.server != ServerKind::PerAgent);
                tried(names::LIST, Support::hinted(can.list_sessions)).or(by_server)
            }
            Feature::DetachSession => extension(Extension::SessionDetach),
            Feature::TerminateSession => {
                let close = tried(names::CLOSE, Support::said(can.close_session));
                extension(Extension::SessionTerminate).or(close)
            }
            Feature::DeleteSession => tried(names::DELETE, Support::hinted(can.delete_session)),
            Feature::AdditionalDirectories => Support::said(can.additional_directories),
            Feature::Logout => tried(names::LOGOUT, Support::hinted(can.logout)),
            Feature::SetMode => tried(names::SET_MODE, Support::Unknown).or(set_option),
            Feature::SetModel => tried(names::SET_MODEL, Support::Unknown).or(set_option),
            Feature::SetConfigOption => set_option,
            Feature::ListModels => extension(Extension::SessionListModels),
            Feature::SetMetadata => extension(Extension::SessionSetMetadata),
            Feature::Images => Support::said(can.images),
            Feature::Audio => Support::said(can.audio),
            Feature::EmbeddedResources => Support::said(can.embedded_resources),
            Feature::Extension(wanted) => extension(wanted),
        }
    }
}

/// Returns what a server advertises about a feature. A server that advertises nothing may forward the call to its agent.
fn advertised(can: &Capabilities, extension: Extension) -> Support {
    if can.extensions.is_empty() {
        return Support::Unknown;
    }
    Support::said(can.extensions.supports(extension))
}
