//! How programs serve the requests of agents.

use std::sync::Arc;

use futures::future::BoxFuture;
use sandbox_agent_sdk::{
    PermissionDecision, PermissionRequest, SandboxAgentClient,
    requests::AgentRequest,
    sessions::{EventQuery, SessionStore, StoredEventKind},
};
use serde_json::json;

use super::program::{Life, Shared};
use crate::sim::ledger::RequestRecord;

/// Decides permissions: at once, slowly, or never because the program is killed meanwhile.
pub(super) fn decide(
    shared: &Arc<Shared>,
    life: &Life,
) -> impl Fn(PermissionRequest) -> BoxFuture<'static, PermissionDecision> + Send + Sync + 'static {
    let (shared, life) = (shared.clone(), life.clone());
    move |request| Box::pin(decide_one(shared.clone(), life.clone(), request.id().to_owned()))
}

async fn decide_one(shared: Arc<Shared>, life: Life, id: String) -> PermissionDecision {
    shared.world.note(|| format!("{}: is asked for a{id}", life.name));
    let mut random = shared.world.random(&format!("decision a{id} {}", life.name));
    let pause = random.pick(&[0, 0, 5, 300, 4_000, 40_000]);
    tokio::time::sleep(random.millis(pause)).await;
    life.wait_if_over().await;
    let option = random.pick(&["yes", "no"]);
    shared.world.note(|| format!("{}: decides a{id}: {option}", life.name));
    decided(&shared, &life, &format!("a{id}"));
    PermissionDecision::Option(option.to_owned())
}

/// Takes note of a decision during a call about the session: it is sent before it is stored.
fn decided(shared: &Shared, life: &Life, tag: &str) {
    let mut ledger = shared.world.ledger();
    let Some(session) = ledger.requests.get(tag).and_then(RequestRecord::stored_session) else { return };
    let key = (life.name.to_string(), session);
    if ledger.under_way.get(&key).is_some_and(|calls| *calls > 0) {
        ledger.requests.entry(tag.to_owned()).or_default().decided_early.insert(key.0);
    }
}

/// Has a program write the files that agents want.
pub(super) fn serve(shared: &Arc<Shared>, life: &Life, client: &SandboxAgentClient) {
    let (shared, life) = (shared.clone(), life.clone());
    let writes = |request: &AgentRequest| request.method() == "fs/write_text_file";
    let registration = client.requests().register(writes, move |request: AgentRequest| {
        let (shared, life) = (shared.clone(), life.clone());
        async move {
            write(&shared, &life, request.id()).await;
            Ok(json!({}))
        }
    });
    registration.detach();
}

/// Executes a request. Whether that was allowed is checked in the same moment.
async fn write(shared: &Shared, life: &Life, id: &str) {
    life.wait_if_over().await;
    let tag = format!("a{id}");
    shared.world.note(|| format!("{}: executes {tag}", life.name));
    let session = executed(shared, life, &tag);
    if !is_stored(shared, &session, id).await {
        shared.world.fail(format!("{tag} of {session} is executed and is not stored"));
    }
    let mut random = shared.world.random(&format!("write {tag} {}", life.name));
    let pause = random.pick(&[0, 0, 5, 300, 8_000]);
    tokio::time::sleep(random.millis(pause)).await;
    life.wait_if_over().await;
}

/// Takes note of an execution, which is the only one of the request. Returns the stored session.
fn executed(shared: &Shared, life: &Life, tag: &str) -> String {
    let mut ledger = shared.world.ledger();
    let request = ledger.requests.entry(tag.to_owned()).or_default();
    request.executed.push(life.name.to_string());
    let executed = request.executed.clone();
    let session = request.stored_session().unwrap_or_default();
    drop(ledger);
    if executed.len() > 1 {
        shared.world.fail(format!("{tag} was executed by {executed:?}"));
    }
    session
}

/// Whether the store has it that a program begins with a request.
async fn is_stored(shared: &Shared, session: &str, id: &str) -> bool {
    let query = EventQuery::of(session).newest_first().kinds([StoredEventKind::AgentRequest]).limit(1000);
    let stored = shared.store.events(&query).await.expect("the store is in memory");
    stored.events.iter().any(|event| number(event.rpc_id.as_deref()) == Some(id))
}

/// The number of an agent request by its stored JSON-RPC id.
pub(super) fn number(rpc_id: Option<&str>) -> Option<&str> {
    rpc_id.map(|id| id.trim_matches('"'))
}
