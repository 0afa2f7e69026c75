//! Sessions that go from one store to another.

use futures::TryStreamExt as _;
use sandbox_agent_sdk::{Error, NewSession, SessionStatus, Sessions, StoreError};

use crate::support::{KINDS, client, within};
use crate::world::{Ability, World, agent, stored};

async fn exported(sessions: &Sessions, id: &str) -> Vec<String> {
    within(sessions.export(id).try_collect()).await.unwrap()
}

#[tokio::test]
async fn a_transcript_goes_to_another_store_whole_or_not_at_all() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    let session = within(sessions.create_as("mine", NewSession::in_dir("/").title("T\n\0"))).await.unwrap();
    for text in ["one", "two \u{1F600}\n\"", "three"] {
        within(within(session.prompt(text)).await.unwrap().outcome()).await.unwrap();
    }
    let lines = exported(&sessions, "mine").await;
    assert!(lines.iter().all(|line| !line.contains('\n')), "a line is a line");
    let original = stored(&**sessions.store(), "mine").await;
    assert_eq!(lines.len(), original.len() + 2);

    let other = client(&world.server, KINDS[0]).sessions();
    // Whatever is cut off, swapped, doubled or spoilt is refused, and leaves nothing behind.
    let mut spoilt: Vec<(Vec<String>, &str)> =
        (0..lines.len()).map(|cut| (lines[..cut].to_vec(), "cut off")).collect();
    for n in 1..lines.len() {
        let without =
            lines.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, line)| line.clone()).collect();
        spoilt.push((without, "without a line"));
        let mut doubled = lines.clone();
        doubled.insert(n, lines[n].clone());
        spoilt.push((doubled, "a line twice"));
    }
    for n in 1..lines.len() - 1 {
        let mut swapped = lines.clone();
        swapped.swap(n, n + 1);
        spoilt.push((swapped, "swapped"));
        let mut foreign = lines.clone();
        foreign[n] = foreign[n].replace("\"sessionId\":\"mine\"", "\"sessionId\":\"other\"");
        spoilt.push((foreign, "of another session"));
    }
    let mut newer = lines.clone();
    newer[0] = newer[0].replace("\"version\":1", "\"version\":2");
    spoilt.push((newer, "newer"));
    for (lines, how) in spoilt {
        let error = within(other.import(&lines)).await.unwrap_err();
        assert!(matches!(error, Error::Store(StoreError::Transcript { .. })), "{how}: {error:?}");
        assert_eq!(other.get("mine").await.unwrap(), None, "{how}");
    }

    let record = within(other.import(&lines)).await.unwrap();
    assert_eq!((record.id.as_str(), record.title.as_deref()), ("mine", Some("T\n\0")));
    assert_eq!(stored(&**other.store(), "mine").await, original);
    let twice = within(other.import(&lines)).await.unwrap_err();
    assert!(matches!(twice, Error::Store(StoreError::Exists { .. })), "{twice:?}");
    assert_eq!(exported(&other, "mine").await[1..], lines[1..]);
    // It goes on there.
    let text = within(async { other.session("mine").prompt("four").await?.text().await }).await.unwrap();
    assert_eq!(text, "re: four; ");
}

#[tokio::test]
async fn a_transcript_of_the_time_of_five_states_comes_in_with_four() {
    let world = World::new(KINDS[0], agent(Ability::Resume)).await;
    let (_client, sessions) = world.program().await;
    for (old, new) in [("completed", SessionStatus::Active), ("cancelled", SessionStatus::Archived)] {
        let line = format!(
            r#"{{"type":"session","version":1,"record":{{"id":"{old}","agent":"mock","status":"{old}","createdAt":1,"lastActive":2}}}}"#
        );
        let record = within(sessions.import([line.as_str(), r#"{"type":"end","events":0}"#])).await.unwrap();
        assert_eq!(record.status, new);
    }
    let missing = within(sessions.export("nobody").try_collect::<Vec<_>>()).await.unwrap_err();
    assert!(matches!(missing, Error::Store(StoreError::NotFound { .. })));
}
