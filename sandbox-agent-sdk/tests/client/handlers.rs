//! Registered handlers of agent requests.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::error::RpcError;
use sandbox_agent_sdk::requests::{AgentRequest, RequestHandler, Response};
use sandbox_agent_sdk::{PermissionPolicy, SandboxAgentClient};
use serde_json::{Map, Value, json};

use super::support::{KINDS, client, options, session, within};

fn ask(method: &str) -> Step {
    Step::Request { method: method.into(), params: json!({"n": 1}) }
}

async fn server(steps: Vec<Step>) -> MockServer {
    MockServer::builder().agent("mock", Script::steps(steps)).start().await
}

async fn turn(client: &SandboxAgentClient) {
    within(session(client).await.prompt("go").outcome()).await.unwrap();
}

fn answers(server: &MockServer) -> Vec<Value> {
    server.answers().into_iter().map(|answer| answer.answer).collect()
}

fn is_method(method: &'static str) -> impl Fn(&AgentRequest) -> bool {
    move |request| request.method() == method
}

#[tokio::test]
async fn the_handler_that_was_registered_last_responds_and_may_forward() {
    for kind in KINDS {
        let server = server(vec![ask("_x/a"), ask("_x/b"), ask("_x/c")]).await;
        let client = client(&server, kind);
        let reply = |name: &'static str| move |_: AgentRequest| async move { Ok(json!({"by": name})) };
        client.requests().register(is_method("_x/a"), reply("first")).detach();
        client.requests().register(is_method("_x/b"), reply("other")).detach();
        let second = |request: AgentRequest| async move {
            assert!(request.session_id().is_some() && !request.id().is_empty());
            let params = request.params()["n"].clone();
            let before = request.forward().await;
            Ok(json!({"by": "second", "n": params, "before": before.unwrap_or_default()}))
        };
        client.requests().register(|request| request.method() != "_x/b", second).detach();
        turn(&client).await;
        let answers = answers(&server);
        assert_eq!(answers[0]["result"], json!({"by": "second", "n": 1, "before": {"by": "first"}}));
        assert_eq!(answers[1]["result"], json!({"by": "other"}));
        assert_eq!(answers[2]["result"], json!({"by": "second", "n": 1, "before": null}));
    }
}

#[tokio::test]
async fn dropping_a_registration_removes_its_handler() {
    let server = server(vec![ask("_x/a")]).await;
    let client = client(&server, KINDS[0]);
    let session = session(&client).await;
    let registration =
        client.requests().register(is_method("_x/a"), |_: AgentRequest| async { Ok(json!(1)) });
    within(session.prompt("go").outcome()).await.unwrap();
    drop(registration);
    within(session.prompt("go").outcome()).await.unwrap();
    let answers = answers(&server);
    assert_eq!((&answers[0]["result"], &answers[1]["error"]["code"]), (&json!(1), &json!(-32601)));
}

#[tokio::test]
async fn a_handler_sees_the_decision_about_a_permission_before_it_is_sent() {
    let permission = || Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
    for kind in KINDS {
        let server = Arc::new(server(vec![permission()]).await);
        let client = options(&server, kind).permissions(PermissionPolicy::BypassPermissions).build().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let (seen, server) = (Arc::clone(&seen), Arc::clone(&server));
            move |request: AgentRequest| {
                let (seen, server) = (Arc::clone(&seen), Arc::clone(&server));
                async move {
                    let response = request.forward().await;
                    // The handler runs before the agent receives the response.
                    seen.lock().unwrap().push((response.clone(), server.answers().len()));
                    response
                }
            }
        };
        client.requests().register(is_method("session/request_permission"), handler).detach();
        turn(&client).await;
        let seen = seen.lock().unwrap().clone();
        let [(Ok(result), 0)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(result["outcome"]["outcome"], "selected");
        assert_eq!(&answers(&server)[0]["result"], result);
    }
}

#[tokio::test]
async fn a_panic_in_a_handler_is_an_error_response() {
    let server = server(vec![ask("_x/sync"), ask("_x/async"), ask("_x/filter")]).await;
    let client = client(&server, KINDS[1]);
    struct Panics;
    impl RequestHandler for Panics {
        fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
            assert_ne!(request.method(), "_x/sync", "on purpose");
            Box::pin(async { panic!("on purpose") })
        }

        fn capabilities(&self, _agent: &str) -> Map<String, Value> {
            panic!("on purpose")
        }

        fn close(&self) {
            panic!("on purpose")
        }
    }
    let filter = |request: &AgentRequest| {
        assert_ne!(request.method(), "_x/filter", "on purpose");
        true
    };
    client.requests().register(filter, Panics).detach();
    turn(&client).await;
    let codes: Vec<_> = answers(&server).iter().map(|answer| answer["error"]["code"].clone()).collect();
    assert_eq!(codes, [RpcError::INTERNAL_ERROR, RpcError::INTERNAL_ERROR, RpcError::METHOD_NOT_FOUND]);
    within(client.disconnect()).await.unwrap();
}

/// Records the calls of its methods.
#[derive(Clone)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }
}

impl RequestHandler for Notes {
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        self.add(format!("handle {}", request.method()));
        Box::pin(async { Ok(json!({})) })
    }

    fn for_connection(&self, agent: &str) -> Option<Arc<dyn RequestHandler>> {
        self.add(format!("connect {agent}"));
        Some(Arc::new(self.clone()))
    }

    fn capabilities(&self, agent: &str) -> Map<String, Value> {
        let Value::Object(capabilities) = json!({"_example": {"for": agent}}) else { unreachable!() };
        capabilities
    }

    fn connection_ended(&self) -> BoxFuture<'static, ()> {
        self.add("ended");
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test]
async fn a_handler_advertises_and_is_notified_of_connections() {
    for kind in KINDS {
        let server = server(vec![ask("_x/a")]).await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let notes = Notes(Arc::default());
        client.requests().register(|_| true, notes.clone()).detach();
        within(client.connect()).await.unwrap();
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"];
        assert_eq!(advertised["_example"], json!({"for": "mock"}));
        turn(&client).await;
        within(client.disconnect()).await.unwrap();
        let notes = notes.0.lock().unwrap().clone();
        assert_eq!(notes, ["connect mock", "handle _x/a", "ended"]);
    }
}
