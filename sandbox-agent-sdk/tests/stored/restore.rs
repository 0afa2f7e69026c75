//! {program restart, server restart, agent crash} x {agent can resume, load, neither}.

use std::collections::HashMap;

use mock_server::{Fault, State};
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::sessions::{RestoredBy, SessionStatus, StoredSession, Suspend, TransitionError};
use sandbox_agent_sdk::{Error, Event, Events, NewSession, ServerKind};

use crate::support::{KINDS, within};
use crate::world::{Ability, World, agent, said, stored};

/// What happens between two prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    ProgramRestart,
    ServerRestart,
    ServerRestartWithoutMemory,
    AgentCrash,
}

/// Counts what was delivered as new, by its text.
#[derive(Default)]
struct Delivered(HashMap<String, usize>);

impl Delivered {
    fn read(&mut self, events: &mut Events) {
        while let Some(event) = events.try_next() {
            if let Event::Update(update) = event
                && update.origin() == Origin::Live
                && let Some(text) = update.message_text()
            {
                *self.0.entry(text.to_owned()).or_default() += 1;
            }
        }
    }
}

/// Prompts until it works. Each failure has to be typed and in time, and says whether the prompt may have been taken.
async fn prompt(session: &StoredSession, text: &str) -> usize {
    for attempt in 0..5 {
        let outcome = within(async { session.prompt(text).await?.text().await }).await;
        match outcome {
            Ok(answer) => {
                assert_eq!(answer, format!("re: {text}; "));
                return attempt;
            }
            Err(error) => {
                assert!(!matches!(error, Error::Config(_) | Error::Store(_)), "{error:?}");
                assert!(!error.maybe_executed() || attempt == 0, "{error:?}");
            }
        }
    }
    panic!("five prompts failed");
}

async fn survives(kind: ServerKind, ability: Ability, blow: Blow) {
    let case = format!("{kind}, {ability:?}, {blow:?}");
    let world = World::new(kind, agent(ability)).await;
    let (mut client, mut sessions) = world.program().await;
    let mut events = client.events();
    let mut delivered = Delivered::default();
    let mut session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    assert_eq!(prompt(&session, "one").await, 0, "{case}");
    sessions.flush().await.unwrap();

    match blow {
        Blow::ProgramRestart => {
            delivered.read(&mut events);
            drop((client, sessions, session));
            (client, sessions) = world.program().await;
            events = client.events();
            session = within(sessions.resume_or_create("mine", NewSession::in_dir("/"))).await.unwrap();
        }
        Blow::ServerRestart => world.server.restart(State::Preserved).await,
        Blow::ServerRestartWithoutMemory => world.server.restart(State::Lost).await,
        Blow::AgentCrash => {
            let error = within(within(session.prompt("die")).await.unwrap().text()).await.unwrap_err();
            assert_eq!(error.termination().unwrap().exit_code, Some(3), "{case}");
            let record = session.record().await.unwrap();
            assert_eq!(record.status, SessionStatus::Active, "an exit does not change the status");
        }
    }
    // No prompt was open, so none fails, even if the client does not know yet that the server restarted.
    assert_eq!(prompt(&session, "two").await, 0, "{case}");
    assert_eq!(prompt(&session, "three").await, 0, "{case}");
    assert_eq!(session.id(), "mine");
    sessions.flush().await.unwrap();
    delivered.read(&mut events);

    for (text, count) in &delivered.0 {
        assert_eq!(*count, 1, "{case}: {text:?} was delivered again as new");
    }
    let kept = stored(&**sessions.store(), "mine").await;
    let said = said(&kept);
    for text in ["re: one; ", "re: two; ", "re: three; "] {
        assert_eq!(said.iter().filter(|said| **said == text).count(), 1, "{case}: {said:?}");
        assert_eq!(delivered.0.get(text), Some(&1), "{case}");
    }
    let restored: Vec<_> = kept.iter().filter(|event| event.kind.as_str() == "restored").collect();
    if let [restored] = restored[..] {
        let by = match ability {
            Ability::Resume | Ability::Both => "resume",
            Ability::Load => "load",
            Ability::Neither => "replay",
        };
        assert_eq!(restored.payload["by"], by, "{case}");
    } else {
        // A server that remembers need not be asked for anything.
        assert!(restored.is_empty() && blow == Blow::ServerRestart, "{case}: {restored:?}");
    }
    got_the_transcript(&world, ability, !restored.is_empty(), &case);
    client.disconnect().await.unwrap();
}

/// Only an agent that can neither resume nor load receives the transcript, and only once.
fn got_the_transcript(world: &World, ability: Ability, restored: bool, case: &str) {
    let prompts = world.server.messages("session/prompt");
    let text = |prompt: &serde_json::Value| prompt["params"]["prompt"].to_string();
    let telling: Vec<String> = prompts.iter().map(text).filter(|prompt| prompt.contains("re: one")).collect();
    if restored && ability == Ability::Neither {
        assert_eq!(telling.len(), 1, "{case}: {telling:?}");
        assert!(telling[0].contains("\\\"text\\\":\\\"one\\\""), "{case}: what the user said: {telling:?}");
    } else {
        assert_eq!(telling, Vec::<String>::new(), "{case}");
    }
}

async fn survives_everywhere(blow: Blow) {
    for kind in [ServerKind::Shared, ServerKind::PerAgent, ServerKind::ConnectionId] {
        for ability in Ability::ALL {
            survives(kind, ability, blow).await;
        }
    }
}

#[tokio::test]
async fn a_process_that_restarts_continues() {
    survives_everywhere(Blow::ProgramRestart).await;
}

#[tokio::test]
async fn a_server_that_restarts_is_survived() {
    survives_everywhere(Blow::ServerRestart).await;
}

#[tokio::test]
async fn a_server_that_lost_its_memory_is_survived() {
    survives_everywhere(Blow::ServerRestartWithoutMemory).await;
}

#[tokio::test]
async fn an_agent_that_crashes_is_survived() {
    survives_everywhere(Blow::AgentCrash).await;
}

/// The server is there again and does not take the first connection: that is no reason to give the session up.
#[tokio::test]
async fn a_connection_that_could_not_be_made_again_is_tried_again() {
    let world = World::new(ServerKind::PerAgent, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    prompt(&session, "one").await;
    world.server.restart(State::Lost).await;
    world.server.inject(Fault::post_status(500).on_method("initialize").times(1));
    for attempt in 0..5 {
        match within(async { session.prompt("two").await?.text().await }).await {
            Ok(answer) => {
                assert_eq!((answer.as_str(), world.server.fired("PostStatus")), ("re: two; ", 1));
                return;
            }
            Err(error) => assert!(!matches!(error, Error::NotConnected), "attempt {attempt}: {error:?}"),
        }
    }
    panic!("five prompts failed");
}

/// The latest events need not be stored yet when the agent receives the transcript.
#[tokio::test]
async fn events_that_are_not_stored_yet_are_replayed_too() {
    for kind in KINDS {
        let world = World::new(kind, agent(Ability::Neither)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        prompt(&session, "one").await;
        within(within(session.prompt("die")).await.unwrap().text()).await.unwrap_err();
        prompt(&session, "two").await;
        got_the_transcript(&world, Ability::Neither, true, "not stored yet");
    }
}

#[tokio::test]
async fn an_agent_that_forgot_the_session_gets_a_new_one_with_its_history() {
    use mock_server::Step;
    for ability in [Ability::Resume, Ability::Load] {
        let forgetful = agent(ability).on_request(|method, _| {
            let refused = matches!(method, "session/resume" | "session/load");
            let fail = Step::Fail { code: -32002, message: "no such session".to_owned(), data: None };
            refused.then(|| vec![fail])
        });
        let world = World::new(KINDS[0], forgetful).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        prompt(&session, "one").await;
        let before = session.record().await.unwrap().agent_session;
        sessions.flush().await.unwrap();
        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        assert_eq!(
            within(session.resume()).await.unwrap().map(|restored| restored.by),
            Some(RestoredBy::Replay)
        );
        assert_eq!(
            within(session.resume()).await.unwrap().map(|restored| restored.by),
            None,
            "there is nothing to do"
        );
        assert_ne!(session.record().await.unwrap().agent_session, before);
        prompt(&session, "two").await;
        got_the_transcript(&world, Ability::Neither, true, "forgetful");
    }
}

#[tokio::test]
async fn a_suspended_session_becomes_active_again_with_every_agent_unless_replay_is_not_wanted() {
    for ability in Ability::ALL {
        let world = World::new(KINDS[0], agent(ability)).await;
        let (_client, sessions) = world.program().await;
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        prompt(&session, "one").await;
        assert_eq!(within(sessions.shut_down(Suspend::All)).await.unwrap(), 1);
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Suspended);

        let (_client, sessions) = world.program().await;
        let session = sessions.session("mine");
        let refused = within(session.prompt("two")).await.unwrap_err();
        let suspended = SessionStatus::Suspended;
        assert!(matches!(refused, Error::NotAllowed { status, .. } if status == suspended), "{refused:?}");
        if ability == Ability::Neither {
            let client =
                world.options().await.stored(|options| options.resume_by_replay(false)).build().unwrap();
            let error = within(client.resume("mine")).await.unwrap_err();
            assert!(matches!(error, Error::Status(TransitionError::NotResumable { .. })), "{error:?}");
            assert_eq!(session.record().await.unwrap().status, SessionStatus::Suspended);
        }
        let resumed = within(sessions.resume("mine")).await.unwrap();
        prompt(&resumed, "two").await;
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
    }
}

#[tokio::test]
async fn a_replayed_transcript_stays_within_its_limits_and_ends_with_the_newest_message() {
    let world = World::new(KINDS[0], agent(Ability::Neither)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    for n in 0..10 {
        prompt(&session, &format!("question {n}")).await;
    }
    sessions.flush().await.unwrap();
    for (events, chars, first) in [(4, 12_000, Some(8)), (50, 1_200, None)] {
        world.server.forget_requests();
        let options = world.options().await;
        let options = options.stored(|options| options.replay_max_messages(events).replay_max_chars(chars));
        let client = options.build().unwrap();
        let session = client.session("mine");
        prompt(&session, &format!("again {events}")).await;
        let prompts = world.server.messages("session/prompt");
        let told = prompts[0]["params"]["prompt"][0]["text"].as_str().unwrap();
        assert!(told.chars().count() <= chars, "{} characters", told.chars().count());
        assert!(told.lines().count() - 2 <= events);
        assert_eq!(
            prompts[0]["params"]["prompt"].as_array().unwrap().len(),
            2,
            "the history, and the prompt"
        );
        if let Some(first) = first {
            assert!(told.contains(&format!("question {first}")) && told.contains("question 9"), "{told}");
            assert!(!told.contains(&format!("question {}", first - 1)), "{told}");
        }
        client.flush().await.unwrap();
    }
}
