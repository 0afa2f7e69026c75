//! Turns.

use sandbox_agent_sdk::{Content, Prompt};
use sdk_tests::agents::RealAgent;

use crate::{
    bench::{Bench, ask, in_time, read},
    cell::{Cell, Seen},
};

pub(super) async fn two_thousand_chunks_come_in_order_before_the_outcome(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let log = ask(&session, "say 2000").await;
    let wanted: String = (0..2000).map(|number| format!("{number} ")).collect();
    let text = log.ended().text();
    let same = text.trim_end() == wanted.trim_end();
    let apart = text.chars().zip(wanted.chars()).position(|(got, wanted)| got != wanted);
    assert!(same, "{} of {} characters, apart at {apart:?}", text.len(), wanted.len());
    let chunks = log.updates.iter().filter(|update| update.message_text().is_some()).count();
    let next = ask(&session, "and now").await;
    assert_eq!(next.ended().text(), "echo: and now");
    // Agents that read slowly join chunks.
    assert!(chunks > 1, "{chunks} chunks");
    Seen::Works
}

pub(super) async fn thoughts_are_reported_as_thoughts(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let session = bench.session().await;
    let log = ask(&session, "think 20").await;
    assert_eq!(log.ended().text(), "thought about it");
    let wanted: String = (0..20).map(|number| format!("thought {number} ")).collect();
    if cell.agent == RealAgent::Gemini {
        // It treats each chunk as a separate thought with a subject in bold type.
        let thoughts = log.thoughts().replace("****\n", " ");
        assert_eq!(thoughts.trim(), wanted.trim());
        return Seen::note("each chunk is a separate thought, with an empty subject in bold type");
    }
    assert_eq!(log.thoughts().trim(), wanted.trim());
    Seen::Works
}

/// One pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

pub(super) async fn an_image_reaches_the_model(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let session = connected.session(bench.new_session()).await;
    let image = Content::image(PNG, "image/png");
    let prompt: Prompt = vec![Content::text_of("what is this"), image].into();
    let log = read(session.prompt(prompt)).await;
    log.ended();
    let sent = bench.model.turns().iter().any(|request| request.contains(&PNG[..40]));
    assert!(connected.capabilities.images, "{:?}", connected.capabilities.raw);
    if cell.agent == RealAgent::Qwen {
        assert!(!sent, "it sends images to models that it does not know now");
        return Seen::cannot("advertises images, and leaves them out for a model that it does not know");
    }
    assert!(sent, "the image is in no request");
    Seen::Works
}

pub(super) async fn two_sessions_have_a_turn_at_once(cell: Cell) -> Seen {
    let bench = Bench::start(cell).await;
    let connected = bench.client().await;
    let first = connected.session(bench.new_session()).await;
    let second = connected.session(bench.new_session()).await;
    assert_ne!(first.id(), second.id());
    let both = in_time("the model serves both turns at once", bench.model.serves_turns(2));
    let (one, two, ()) = tokio::join!(ask(&first, "slow 60"), ask(&second, "slow 61"), both);
    let numbers = |count: usize| (0..count).map(|number| format!("{number} ")).collect::<String>();
    assert_eq!(one.ended().text().trim(), numbers(60).trim());
    assert_eq!(two.ended().text().trim(), numbers(61).trim());
    assert!(one.updates.iter().all(|update| update.session_id() == first.id()));
    assert!(two.updates.iter().all(|update| update.session_id() == second.id()));
    Seen::Works
}
