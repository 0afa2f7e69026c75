//! Replays captures of real servers: the client must report the same as when they were recorded.

use std::{fs, path::Path};

use sandbox_agent_sdk::ClientOptions;
use sdk_tests::{Capture, Replay, Scenario, within};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures")
}

async fn replayed(name: &str) {
    let capture = Capture::read(&folder().join(name)).expect("a capture");
    let scenario = Scenario::named(&capture.scenario).expect("a known scenario");
    let replay = Replay::start(&capture).await;
    let observed = within(name, scenario.run(ClientOptions::new(replay.url()).agent("mock"))).await;
    let observed = observed.expect("a connection and a session");
    assert_eq!(observed, capture.observed, "{name}: {:?}", replay.progress());
    assert_eq!(replay.unexpected(), Vec::<String>::new(), "{name}");
}

macro_rules! captures {
    ($($test:ident: $file:literal;)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                replayed($file).await;
            }
        )*

        #[test]
        fn every_capture_is_replayed() {
            let mut there: Vec<String> = fs::read_dir(folder())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            there.sort();
            let mut replayed = vec![$($file.to_owned()),*];
            replayed.sort();
            assert_eq!(there, replayed);
        }
    };
}

captures! {
    a_turn_of_the_released_server: "sandbox-agent-0.4.2-turn.jsonl";
    a_permission_of_the_released_server: "sandbox-agent-0.4.2-permission.jsonl";
    a_cancelled_turn_of_the_released_server: "sandbox-agent-0.4.2-cancel.jsonl";
    lines_that_are_no_messages_of_the_released_server: "sandbox-agent-0.4.2-garbage.jsonl";
    a_crash_of_the_released_server: "sandbox-agent-0.4.2-crash.jsonl";
    a_turn_of_an_older_released_server: "sandbox-agent-0.4.0-turn.jsonl";
}

#[tokio::test]
async fn a_capture_with_other_content_is_distinguished() {
    let mut capture = Capture::read(&folder().join("sandbox-agent-0.4.2-turn.jsonl")).expect("a capture");
    for entry in &mut capture.entries {
        if let sdk_tests::Pass::Event { message, .. } = &mut entry.pass
            && message["params"]["update"]["content"]["text"] == "two"
        {
            message["params"]["update"]["content"]["text"] = "changed".into();
        }
    }
    let replay = Replay::start(&capture).await;
    let observed =
        within("the replay", Scenario::Turn.run(ClientOptions::new(replay.url()).agent("mock"))).await;
    assert_ne!(observed.expect("a connection and a session"), capture.observed);
}
