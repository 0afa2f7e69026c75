//! Processes, terminals and the desktop: one suite on the mock server and on the released one. The mock server has no
//! desktop.

mod desktop;
mod operations;
mod processes;
mod remote_shell;
mod terminals;

use mock_server::MockServer;
use sandbox_agent_sdk::control::ControlPlane;
use sdk_tests::{ReleasedServer, ReleasedSetup};

use crate::servers::{STUB, released};

/// The version of the released server.
const VERSION: &str = "0.4.2";

/// A server of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mock,
    Released,
}

/// A running server. Dropping this value stops it.
struct Server {
    running: Running,
    token: Option<&'static str>,
}

enum Running {
    Mock(Box<MockServer>),
    Released(ReleasedServer),
}

impl Server {
    /// Starts a server. `None`, with a note on standard error, if this machine cannot run it.
    async fn start(kind: Kind) -> Option<Self> {
        Self::with_token(kind, None).await
    }

    async fn with_token(kind: Kind, token: Option<&'static str>) -> Option<Self> {
        let running = match kind {
            Kind::Mock => {
                let mut builder = MockServer::builder();
                if let Some(token) = token {
                    builder = builder.token(token);
                }
                Running::Mock(Box::new(builder.start().await))
            }
            Kind::Released => {
                let program = released(VERSION).await?;
                let agent = vec![STUB.to_owned()];
                let token = token.map(str::to_owned);
                let setup = ReleasedSetup { program, agent, token, request_limit: None };
                Running::Released(ReleasedServer::start(setup).await)
            }
        };
        Some(Self { running, token })
    }

    fn url(&self) -> String {
        match &self.running {
            Running::Mock(mock) => mock.url(),
            Running::Released(released) => released.url(),
        }
    }

    fn plane(&self) -> ControlPlane {
        let mut builder = ControlPlane::builder(self.url());
        if let Some(token) = self.token {
            builder = builder.token(token);
        }
        builder.build().expect("a control plane")
    }
}

macro_rules! suite {
    ($($file:ident::$behaviour:ident)*) => {
        mod mock {
            $(#[tokio::test]
            async fn $behaviour() {
                crate::control::$file::$behaviour(crate::control::Kind::Mock).await;
            })*
        }
        mod released_0_4_2 {
            $(#[tokio::test]
            async fn $behaviour() {
                crate::control::$file::$behaviour(crate::control::Kind::Released).await;
            })*
        }
    };
}

suite! {
    processes::a_command_is_run_with_its_output_and_its_end
    processes::a_process_is_created_listed_stopped_and_deleted
    processes::a_process_that_ignores_sigterm_is_killed
    processes::logs_are_read_by_stream_tail_and_position
    processes::output_is_followed_to_its_end_including_late_output_of_children
    processes::large_output_is_followed_whole_and_in_order
    processes::bytes_pass_unchanged_in_both_directions
    processes::input_of_any_size_is_streamed_and_one_request_has_a_limit
    processes::the_end_of_input_reaches_a_process_in_a_terminal
    processes::limits_are_read_changed_and_kept
    processes::an_unknown_process_is_not_found
    terminals::a_terminal_has_a_size_input_output_and_an_exit_code
    terminals::several_clients_share_a_terminal_and_may_leave_it
    terminals::a_terminal_of_an_exited_process_ends_at_once
    terminals::a_process_without_a_terminal_is_refused_as_such
    terminals::a_wrong_token_is_refused_by_a_terminal
    remote_shell::a_shell_is_used_resized_and_left_with_its_exit_code
    remote_shell::keys_reach_the_programs_in_the_shell
}
