use std::time::Duration;

use crate::agent::{Permission, Script, Step, ToolCall, text_triggers_at};
use crate::fault::{Cut, Fault};
use crate::server::{Builder, Echo, MockServer};

/// The pause between words, slow enough to read along.
const PACE: Duration = Duration::from_millis(30);

/// A named configuration of the server, for interactive use and demonstrations.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    name: &'static str,
    about: &'static str,
    build: fn(Builder) -> Builder,
}

impl Scenario {
    /// Returns all scenarios.
    pub fn all() -> &'static [Self] {
        &SCENARIOS
    }

    /// Returns the scenario with this name.
    pub fn named(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns a one-line description.
    pub fn about(self) -> &'static str {
        self.about
    }

    /// Returns a builder configured for the scenario.
    pub fn builder(self) -> Builder {
        (self.build)(MockServer::builder())
    }
}

const fn scenario(name: &'static str, about: &'static str, build: fn(Builder) -> Builder) -> Scenario {
    Scenario { name, about, build }
}

fn playing(builder: Builder, steps: Vec<Step>) -> Builder {
    builder.agent("mock", Script::steps(steps))
}

fn noisy_crash() -> Step {
    Step::crash(1, (1..=10_000).map(|number| format!("stderr line {number}")))
}

fn asking() -> Vec<Step> {
    let call = ToolCall::new("tool-call-1", "Run echo test");
    vec![Step::ToolCall(call.clone()), Step::AskPermission(Permission::new(call))]
}

static SCENARIOS: [Scenario; 18] = [
    scenario(
        "default",
        "replies word by word and obeys crash, permission, slow, big and garbage",
        |builder| builder.agent("mock", Script::new(|turn| text_triggers_at(turn, PACE))),
    ),
    scenario(
        "crash",
        "each prompt says a word and crashes with exit code 1 and two lines of stderr",
        |builder| {
            playing(
                builder,
                vec![Step::Say("About to".into()), Step::crash(1, ["fatal: no luck", "giving up"])],
            )
        },
    ),
    scenario("crash-noisy", "each prompt crashes with exit code 1 and 10,000 lines of stderr", |builder| {
        playing(builder, vec![noisy_crash()])
    }),
    scenario("crash-signal", "each prompt is killed by SIGKILL", |builder| {
        playing(builder, vec![Step::Say("About to".into()), Step::killed(9, ["out of memory"])])
    }),
    scenario("exit", "each prompt ends the agent with exit code 0 and without a response", |builder| {
        playing(builder, vec![Step::Exit(0)])
    }),
    scenario("hang", "prompts get no response", |builder| playing(builder, vec![Step::Hang])),
    scenario("permission", "each prompt requests a permission first", |builder| playing(builder, asking())),
    scenario("flood", "each prompt streams 5,000 updates of 1 KiB", |builder| {
        playing(builder, vec![Step::Flood { updates: 5_000, bytes: 1_024 }])
    }),
    scenario("garbage", "each prompt prints a line that is not JSON", |builder| {
        playing(builder, vec![Step::Garbage("oops, a log line".into()), Step::Say("still here".into())])
    }),
    scenario("unknown-variants", "each turn is full of unknown values", |builder| {
        builder.fault(Fault::UnknownVariants)
    }),
    scenario("flaky-stream", "every stream is cut after 2,000 bytes", |builder| {
        builder.fault(Fault::StreamCutAt { byte: 2_000, cut: Cut::Dropped })
    }),
    scenario("stalled-stream", "every stream goes silent after 2,000 bytes", |builder| {
        builder.fault(Fault::StreamStallAt { byte: 2_000 })
    }),
    scenario("holes", "the fifth event is never sent", |builder| builder.fault(Fault::Hole { id: 5 })),
    scenario("hanging-posts", "prompts are executed and their POST gets no response", |builder| {
        builder.fault(Fault::PostHangs.on_method("session/prompt"))
    }),
    scenario("gateway-timeout", "prompts are executed and their POST fails with 504", |builder| {
        builder.fault(Fault::post_status_executed(504).on_method("session/prompt"))
    }),
    scenario("stream-only", "responses arrive on the stream only, after 202", |builder| {
        builder.echo(Echo::StreamOnly)
    }),
    scenario("early-server", "assigns connection ids and responds in the body only", |builder| {
        builder.echo(Echo::BodyOnly).connection_ids(Some("X-ACP-Connection-Id"))
    }),
    scenario("slow-start", "no request gets a response in the first five seconds", |builder| {
        builder.fault(Fault::SlowStart { delay: Duration::from_secs(5) })
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for scenario in Scenario::all() {
            assert_eq!(Scenario::named(scenario.name()).map(Scenario::about), Some(scenario.about()));
        }
        assert!(Scenario::named("nothing").is_none());
    }
}
