//! Callers that go away in the middle, at every moment there is, and programs that are killed.

use std::future::poll_fn;
use std::process::{Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use mock_server::MockServer;
use sandbox_agent_sdk::sessions::{
    RecordQuery, SessionStatus, SqliteStore, StoredEventKind, StoredSession, Suspend,
};
use sandbox_agent_sdk::{DropPolicy, Error, Event, Events, NewSession, SandboxAgentClient, ServerKind};

use crate::gated::Gated;
use crate::support::{KINDS, event, timeouts, within};
use crate::world::{Ability, World, agent, counted, counting, delivered, options, said, stored};

/// Polls a future so many times and drops it then, unless it is done before.
async fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    let outcome = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    within(outcome).await
}

/// Asks until no turn is in the way.
async fn ask(session: &StoredSession, text: &str) {
    let answered = within(async {
        loop {
            let outcome = match session.prompt(text).await {
                Ok(turn) => turn.text().await,
                Err(error) => Err(error),
            };
            match outcome {
                Err(Error::TurnInProgress { .. }) => tokio::time::sleep(Duration::from_millis(2)).await,
                outcome => return outcome,
            }
        }
    });
    assert_eq!(answered.await.unwrap(), format!("re: {text}; "));
}

async fn check(world: &World, texts: &[String]) {
    let kept = stored(&world.store().await, "mine").await;
    let said = said(&kept);
    for text in texts {
        let text = format!("re: {text}; ");
        assert_eq!(said.iter().filter(|said| **said == text).count(), 1, "{text}: {said:?}");
    }
}

#[tokio::test]
async fn a_prompt_dropped_at_any_moment_leaves_a_session_that_continues() {
    for (kind, ability) in KINDS.into_iter().zip([Ability::Load, Ability::Neither]) {
        let world = World::new(kind, agent(ability)).await;
        let (_client, sessions) = world.program().await;
        within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        sessions.flush().await.unwrap();
        let mut texts = Vec::new();
        for polls in 0.. {
            let (_client, sessions) = world.program().await;
            let session = sessions.session("mine");
            let turn = dropped_after(polls, session.prompt("dropped")).await;
            let done = turn.is_some();
            drop(turn);
            texts.push(format!("after {polls}"));
            ask(&session, &texts[polls]).await;
            within(sessions.flush()).await.unwrap();
            if done {
                break;
            }
        }
        assert!(texts.len() > 1, "there were several moments");
        check(&world, &texts).await;
    }
}

#[tokio::test]
async fn leaving_a_session_that_is_dropped_at_any_moment_loses_nothing_of_it() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut texts = Vec::new();
    for polls in 0.. {
        let (_client, sessions) = world.program().await;
        let session = within(sessions.resume("mine")).await.unwrap();
        texts.push(format!("before {polls}"));
        ask(&session, texts.last().unwrap()).await;
        let done = dropped_after(polls, session.release()).await.map(Result::unwrap).is_some();
        texts.push(format!("after {polls}"));
        ask(&session, texts.last().unwrap()).await;
        within(sessions.flush()).await.unwrap();
        if done {
            break;
        }
    }
    check(&world, &texts).await;
}

#[tokio::test]
async fn archiving_and_shutting_down_can_be_dropped_and_done_again() {
    let world = World::new(ServerKind::Shared, agent(Ability::Resume)).await;
    for polls in 0.. {
        let (_client, sessions) = world.program().await;
        let id = format!("archived {polls}");
        let session = within(sessions.new_session_as(&id, NewSession::in_dir("/"))).await.unwrap();
        let done = dropped_after(polls, session.archive()).await.is_some();
        match within(session.archive()).await {
            Ok(record) => assert_eq!(record.status, SessionStatus::Archived),
            Err(Error::Status(error)) => assert_eq!(error.from(), SessionStatus::Archived),
            Err(error) => panic!("{error:?}"),
        }
        if done {
            break;
        }
    }
    let (_client, sessions) = world.program().await;
    within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    for polls in 0.. {
        let (_client, sessions) = world.program().await;
        let session = within(sessions.resume("mine")).await.unwrap();
        ask(&session, &format!("round {polls}")).await;
        let done = dropped_after(polls, sessions.shut_down(Suspend::All)).await.is_some();
        within(sessions.shut_down(Suspend::All)).await.unwrap();
        assert_eq!(session.record().await.unwrap().status, SessionStatus::Suspended);
        let active = RecordQuery::all().statuses([SessionStatus::Active]);
        assert_eq!(sessions.store().count(&active).await.unwrap(), 0);
        if done {
            break;
        }
    }
}

const URL: &str = "KEPT_TEST_SERVER_URL";
const FILE: &str = "KEPT_TEST_STORE_FILE";
const ACQUIRES: &str = "KEPT_TEST_ACQUIRES";
const RELEASED_COUNT: usize = 200;

/// The program that is killed: it is this test, started again.
#[tokio::test]
async fn a_program_that_counts() {
    let (Ok(url), Ok(file)) = (std::env::var(URL), std::env::var(FILE)) else { return };
    let store = SqliteStore::open(file).await.unwrap();
    let options = SandboxAgentClient::builder(url).agent("mock").server(ServerKind::Shared);
    let client = options.timeouts(timeouts()).build().unwrap().with_store(store);
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    within(turn.outcome()).await.unwrap();
}

/// The program that is killed while it takes a session up.
#[tokio::test]
async fn a_program_that_resumes() {
    let (Ok(url), Ok(file)) = (std::env::var(URL), std::env::var(FILE)) else { return };
    let store = SqliteStore::open(file).await.unwrap();
    let options = SandboxAgentClient::builder(url).agent("mock").server(ServerKind::Shared);
    let client = options.timeouts(timeouts()).build().unwrap().with_store(store);
    within(client.resume("mine")).await.unwrap();
}

/// One of these programs, to be started.
fn program(world: &World, name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("stalled_stores::{name}"), "--nocapture"])
        .env(URL, world.server.url())
        .env(FILE, world.directory.path().join("sessions.db"))
        .stdout(Stdio::null());
    command
}

#[tokio::test]
async fn a_program_that_is_killed_while_it_takes_a_session_up_leaves_nothing_out_without_a_word() {
    // Longer than any program takes to start.
    const COUNT: usize = 5000;
    let world = World::new(ServerKind::Shared, counting(Ability::Load, COUNT)).await;
    let (one, sessions) = world.program().await;
    let mut events = one.events();
    let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let agent_session = session.agent_session().unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    let mut child = program(&world, "a_program_that_resumes").spawn().unwrap();
    event(&mut events, |event| matches!(event, Event::OwnershipLost { .. }).then_some(())).await;
    child.kill().unwrap();
    child.wait().unwrap();
    // No process stores the messages from now on.
    let _ = delivered(&mut events);
    event(&mut events, |event| matches!(event, Event::Update(_)).then_some(())).await;
    within(agent_session.cancel()).await.unwrap();
    let _ = within(turn.outcome()).await;
    sessions.flush().await.unwrap();
    within(session.resume()).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "the server has all of it");
    let expected: Vec<String> = (1..=said(&kept).len()).map(|n| format!("{n} ")).collect();
    assert_eq!(said(&kept), expected, "nothing is missing, nothing is there twice");
}

/// Starts the program that counts, and kills it when so many numbers are stored.
async fn kill_a_program_that_counts(world: &World, after: usize) -> usize {
    let mut child = program(world, "a_program_that_counts").spawn().unwrap();
    let store = world.store().await;
    within(async {
        while said(&stored(&store, "mine").await).len() < after {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = stored(&store, "mine").await;
    let expected: Vec<String> = (1..=said(&kept).len()).map(|n| format!("{n} ")).collect();
    assert_eq!(said(&kept), expected, "what is there is whole");
    expected.len()
}

/// Waits until the agent has said something.
async fn hear(events: &mut Events, text: &str) {
    let is_it = |event| matches!(event, Event::Update(update) if update.message_text() == Some(text));
    event(events, |event| is_it(event).then_some(())).await;
}

/// The program that acquires a session which another one released.
#[tokio::test]
async fn a_program_that_acquires() {
    let (Ok(url), Ok(file), Ok(_)) = (std::env::var(URL), std::env::var(FILE), std::env::var(ACQUIRES))
    else {
        return;
    };
    let store = SqliteStore::open(file).await.unwrap();
    let options = SandboxAgentClient::builder(url).agent("mock").server(ServerKind::Shared);
    let client = options.timeouts(timeouts()).build().unwrap().with_store(store);
    within(client.resume("mine")).await.unwrap();
    counted(&client, RELEASED_COUNT).await;
}

#[tokio::test]
async fn another_process_gets_exactly_the_rest() {
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, RELEASED_COUNT)).await;
    let client = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let session = within(client.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    let mut turn = within(session.prompt("count")).await.unwrap();
    for _ in 0..5 {
        within(turn.next()).await.unwrap();
    }
    within(session.release()).await.unwrap();
    drop((turn, session, client));
    let mut child = program(&world, "a_program_that_acquires").env(ACQUIRES, "1").spawn().unwrap();
    let (_client, sessions) = world.program().await;
    let numbers = counted(&sessions, RELEASED_COUNT).await;
    assert!(child.wait().unwrap().success());
    assert_eq!(numbers, (1..=RELEASED_COUNT).collect::<Vec<_>>());
}

#[tokio::test]
async fn of_a_program_that_is_killed_in_the_middle_of_a_turn_the_next_one_misses_nothing() {
    const COUNT: usize = 250;
    // The next owner may have been running all the time, or starts during the turn, or after it.
    for ability in [Ability::Resume, Ability::Neither] {
        for is_there in [true, false] {
            let world = World::new(ServerKind::Shared, counting(ability, COUNT)).await;
            let watching = world.program().await;
            let mut events = watching.0.events();
            let before = kill_a_program_that_counts(&world, 20).await;
            // Something happens that no program stores.
            hear(&mut events, &format!("{} ", before + 10)).await;
            let (_client, sessions) = if is_there { watching } else { world.program().await };
            let session = within(sessions.resume("mine")).await.unwrap();
            let numbers = counted(&sessions, COUNT).await;
            assert_eq!(numbers, (1..=COUNT).collect::<Vec<_>>(), "{ability:?} {is_there}");
            assert_eq!(session.record().await.unwrap().status, SessionStatus::Active);
            within(async { session.prompt("again").await?.outcome().await }).await.unwrap();
        }
    }
}

#[tokio::test]
async fn of_forty_busy_sessions_of_a_program_that_ends_without_a_word_nothing_is_lost() {
    const SESSIONS: usize = 40;
    const COUNT: usize = 15;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let client = world.options().await.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let sessions = client.clone();
    let mut turns = Vec::new();
    for n in 0..SESSIONS {
        let id = format!("s{n}");
        let session = within(sessions.new_session_as(id, NewSession::in_dir("/"))).await.unwrap();
        turns.push(within(session.prompt("count")).await.unwrap());
    }
    sessions.flush().await.unwrap();
    drop((turns, sessions, client));
    let (_client, sessions) = world.program().await;
    for n in 0..SESSIONS {
        let id = format!("s{n}");
        within(sessions.resume(&id)).await.unwrap();
        let kept = within(async {
            loop {
                sessions.flush().await.unwrap();
                let kept = stored(&**sessions.store(), &id).await;
                if said(&kept).last() == Some(&format!("{COUNT} ").as_str()) {
                    return kept;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let kept = kept.await;
        let expected: Vec<String> = (1..=COUNT).map(|n| format!("{n} ")).collect();
        assert_eq!(said(&kept), expected, "{id}");
        assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "{id}");
    }
}

#[tokio::test]
async fn history_that_an_agent_replays_on_a_load_does_not_count_as_missed_events() {
    const COUNT: usize = 60;
    for is_there in [true, false] {
        let chunk = |n| {
            let text = format!("{n} ");
            serde_json::json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
        };
        let script = counting(Ability::Load, COUNT).history(move |_| (1..=COUNT).map(chunk).collect());
        let world = World::new(ServerKind::Shared, script).await;
        let watching = world.program().await;
        let mut events = watching.0.events();
        kill_a_program_that_counts(&world, 20).await;
        hear(&mut events, &format!("{COUNT} ")).await;
        let mut programs = vec![world.program().await, world.program().await];
        if is_there {
            programs.insert(0, watching);
        }
        // Each makes the agent replay everything once more, and is killed before anything else happens.
        for (client, sessions) in programs {
            within(sessions.resume("mine")).await.unwrap();
            assert_eq!(counted(&sessions, COUNT).await, (1..=COUNT).collect::<Vec<_>>(), "{is_there}");
            drop((client, sessions));
        }
    }
}

#[tokio::test]
async fn what_the_server_no_longer_has_of_a_turn_is_missed_by_name() {
    const COUNT: usize = 120;
    let server = MockServer::builder().agent("mock", counting(Ability::Resume, COUNT)).replay_buffer(16);
    let server = server.released_quirks(false).start().await;
    let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::Shared };
    let watching = world.program().await;
    let mut events = watching.0.events();
    let before = kill_a_program_that_counts(&world, 20).await;
    hear(&mut events, &format!("{} ", before + 40)).await;
    drop((events, watching));
    let (_client, sessions) = world.program().await;
    within(sessions.resume("mine")).await.unwrap();
    let numbers = counted(&sessions, COUNT).await;
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "nothing is there twice: {numbers:?}");
    assert!(numbers.len() < COUNT, "the server has forgotten some");
    let kept = stored(&**sessions.store(), "mine").await;
    // Where something is missing there is a gap, and nothing else is missing.
    let (mut last, mut is_gap) = (0, false);
    for event in &kept {
        if event.kind == StoredEventKind::Gap {
            assert!(event.payload["to"].is_u64(), "{event:?}");
            is_gap = true;
        }
        for text in said(std::slice::from_ref(event)) {
            let number = text.trim().parse::<usize>().unwrap();
            assert!(number == last + 1 || is_gap, "{number} follows {last} without a gap");
            (last, is_gap) = (number, false);
        }
    }
    assert_eq!(last, COUNT);
}

#[tokio::test]
async fn of_a_program_that_is_killed_before_it_stored_anything_but_the_prompt_nothing_is_missed() {
    const COUNT: usize = 60;
    let world = World::new(ServerKind::Shared, counting(Ability::Resume, COUNT)).await;
    let store = Gated::new(world.store().await);
    let one = options(&world.server, world.kind).shared_store(store.clone());
    let one = one.on_turn_drop(DropPolicy::Detach).build().unwrap();
    let (watching, sessions) = world.program().await;
    let mut events = watching.events();
    let session = within(one.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
    // It sees what happens and comes to store nothing of it.
    let gate = store.appending.lock().await;
    let turn = within(session.prompt("count")).await.unwrap();
    hear(&mut events, "20 ").await;
    drop((turn, session, one));
    drop(gate);
    within(sessions.resume("mine")).await.unwrap();
    assert_eq!(counted(&sessions, COUNT).await, (1..=COUNT).collect::<Vec<_>>());
    let kept = stored(&**sessions.store(), "mine").await;
    assert!(kept.iter().all(|event| event.kind != StoredEventKind::Gap), "nothing is missing");
}
