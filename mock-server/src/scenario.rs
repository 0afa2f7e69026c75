use std::time::Duration;

use crate::agent::{Permission, Script, Step, ToolCall, text_triggers_at};
use crate::fault::{Cut, Fault};
use crate::server::{Builder, Echo, MockServer};

/// The pause between words, so that a reader can follow.
const PACE: Duration = Duration::from_millis(30);

/// A named set-up of the server, for use by hand and in demonstrations.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    name: &'static str,
    about: &'static str,
    build: fn(Builder) -> Builder,
}

impl Scenario {
    /// Every scenario there is.
    pub fn all() -> &'static [Self] {
        &SCENARIOS
    }

    /// The scenario with this name.
    pub fn named(name: &str) -> Option<Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name).copied()
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// What happens in it, in one line.
    pub fn about(self) -> &'static str {
        self.about
    }

    /// A server set up for it.
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
        "each prompt says a word and dies with exit code 1 and two lines of stderr",
        |builder| {
            playing(
                builder,
                vec![Step::Say("About to".into()), Step::crash(1, ["fatal: no luck", "giving up"])],
            )
        },
    ),
    scenario("crash-noisy", "each prompt dies with exit code 1 and 10,000 lines of stderr", |builder| {
        playing(builder, vec![noisy_crash()])
    }),
    scenario("crash-signal", "each prompt dies by SIGKILL", |builder| {
        playing(builder, vec![Step::Say("About to".into()), Step::killed(9, ["out of memory"])])
    }),
    scenario("exit", "each prompt ends the agent with exit code 0 and without an answer", |builder| {
        playing(builder, vec![Step::Exit(0)])
    }),
    scenario("hang", "prompts are never answered", |builder| playing(builder, vec![Step::Hang])),
    scenario("permission", "each prompt asks for a permission first", |builder| playing(builder, asking())),
    scenario("flood", "each prompt streams 5,000 updates of 1 KiB", |builder| {
        playing(builder, vec![Step::Flood { updates: 5_000, bytes: 1_024 }])
    }),
    scenario("garbage", "each prompt prints a line that is not JSON", |builder| {
        playing(builder, vec![Step::Garbage("oops, a log line".into()), Step::Say("still here".into())])
    }),
    scenario("unknown-variants", "each turn is full of values no client knows", |builder| {
        builder.fault(Fault::UnknownVariants)
    }),
    scenario("flaky-stream", "every stream is cut after 2,000 bytes", |builder| {
        builder.fault(Fault::StreamCutAt { byte: 2_000, cut: Cut::Dropped })
    }),
    scenario("stalled-stream", "every stream goes silent after 2,000 bytes", |builder| {
        builder.fault(Fault::StreamStallAt { byte: 2_000 })
    }),
    scenario("holes", "the fifth event is never sent", |builder| builder.fault(Fault::Hole { id: 5 })),
    scenario("hanging-posts", "prompts are executed and their POST is never answered", |builder| {
        builder.fault(Fault::PostHangs.on_method("session/prompt"))
    }),
    scenario("gateway-timeout", "prompts are executed and their POST is answered with 504", |builder| {
        builder.fault(Fault::post_status_executed(504).on_method("session/prompt"))
    }),
    scenario("stream-only", "answers come on the stream only, after 202", |builder| {
        builder.echo(Echo::StreamOnly)
    }),
    scenario("early-server", "hands out connection ids and answers in the body only", |builder| {
        builder.echo(Echo::BodyOnly).connection_ids(Some("X-ACP-Connection-Id"))
    }),
    scenario("slow-start", "no request is answered in the first five seconds", |builder| {
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
