use mock_server::{MockServer, Script, Step};
use serde_json::{Value, json};

use crate::client::{Client, prompt, request};

const META: &str = "sandboxagent.dev";

async fn new_session(client: &Client, meta: Value, cwd: &str) -> String {
    let params = json!({ "cwd": cwd, "mcpServers": [], "_meta": { META: meta } });
    let result = client.result(request("new", "session/new", params)).await;
    result["sessionId"].as_str().unwrap().to_owned()
}

async fn get(server: &MockServer, path: &str) -> (u16, Value) {
    let http = crate::http_client::builder().build().unwrap();
    let response = http.get(format!("{}{path}", server.url())).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default())
}

#[tokio::test]
async fn the_metadata_of_a_new_session_is_stored_and_three_keys_take_effect() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let meta = json!({
        "agent": "mock", "title": "fix it", "model": "m1", "mode": "plan", "variant": "v",
        "requestedSessionId": "mine", "permissionMode": "ask", "skills": ["a"], "anything": { "x": 1 },
    });
    let id = new_session(&client, meta, "/work").await;
    let list = client.result(request(1, "session/list", json!({}))).await;
    let entry = &list["sessions"][0];
    assert_eq!(
        (&entry["sessionId"], &entry["cwd"], &entry["title"]),
        (&json!(id), &json!("/work"), &json!("fix it"))
    );
    let stored = &entry["_meta"][META];
    for (key, value) in [
        ("agent", json!("mock")),
        ("model", json!("m1")),
        ("mode", json!("plan")),
        ("variant", json!("v")),
        ("requestedSessionId", json!("mine")),
        ("skills", json!(["a"])),
        ("anything", json!({ "x": 1 })),
        ("ended", json!(false)),
        ("eventCount", json!(1)),
    ] {
        assert_eq!(stored[key], value, "{key}");
    }
    let (status, info) = get(&server, &format!("/v1/sessions/{id}")).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&info["agentMode"], &info["model"], &info["permissionMode"]),
        (&json!("plan"), &json!("m1"), &json!("ask"))
    );
    assert_eq!(info["directory"], "/work");
}

#[tokio::test]
async fn metadata_merges_by_key_in_both_forms() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let id = new_session(&client, json!({ "agent": "mock", "title": "one", "a": 1 }), "/").await;
    let params = json!({ "sessionId": id, "metadata": { "title": "two", "b": 2 } });
    assert_eq!(client.result(request(1, "_sandboxagent/session/set_metadata", params)).await, json!({}));
    let params = json!({ "sessionId": id, "_meta": { META: { "model": "m2" } } });
    let notification =
        json!({ "jsonrpc": "2.0", "method": "_sandboxagent/session/set_metadata", "params": params });
    assert_eq!(client.post(notification).await.0, 202);
    let info = client.result(request(2, "_sandboxagent/session/get", json!({ "sessionId": id }))).await;
    assert_eq!((&info["title"], &info["model"]), (&json!("two"), &json!("m2")));
    let list = client.result(request(3, "session/list", json!({}))).await;
    let stored = &list["sessions"][0]["_meta"][META];
    assert_eq!((&stored["a"], &stored["b"]), (&json!(1), &json!(2)));
    let unknown = json!({ "sessionId": "nope", "metadata": {} });
    assert_eq!(client.post(request(4, "_sandboxagent/session/set_metadata", unknown)).await.0, 404);
}

#[tokio::test]
async fn terminate_ends_the_session_once_and_a_load_revives_it() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let id = client.session().await;
    let terminate =
        |number: u32| request(number, "_sandboxagent/session/terminate", json!({ "sessionId": id }));
    let first = client.result(terminate(1)).await;
    assert_eq!(
        first,
        json!({ "terminated": true, "alreadyEnded": false, "reason": "terminated", "terminatedBy": "daemon" })
    );
    assert_eq!(client.result(terminate(2)).await["alreadyEnded"], true);
    let seen = client.stream(Some(2)).await.until(|message| message["id"] == 2).await;
    let ended: Vec<Value> = seen
        .iter()
        .map(|event| event.json())
        .filter(|message| message["method"] == "_sandboxagent/session/ended")
        .collect();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["params"]["data"], json!({ "reason": "terminated", "terminated_by": "daemon" }));
    let (_, refused) = client.post(prompt("p", &id, "x")).await;
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["message"]),
        (&json!(-32000), &json!("session already ended"))
    );
    client.result(request(3, "session/load", json!({ "sessionId": id, "cwd": "/", "mcpServers": [] }))).await;
    assert_eq!(client.result(prompt("q", &id, "x")).await["stopReason"], "end_turn");
    assert_eq!(server.session(&id).unwrap().get("terminationInfo"), None);
}

#[tokio::test]
async fn the_list_is_paged_filtered_and_sorted() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    for number in 0..203 {
        let cwd = if number % 2 == 0 { "/even" } else { "/odd" };
        new_session(&client, json!({ "agent": "mock" }), cwd).await;
    }
    let first = client.result(request(1, "session/list", json!({}))).await;
    assert_eq!((first["sessions"].as_array().unwrap().len(), &first["nextCursor"]), (200, &json!("200")));
    let second = client.result(request(2, "session/list", json!({ "cursor": "200" }))).await;
    assert_eq!((second["sessions"].as_array().unwrap().len(), &second["nextCursor"]), (3, &Value::Null));
    let odd = client.result(request(3, "session/list", json!({ "cwd": "/odd" }))).await;
    assert_eq!(odd["sessions"].as_array().unwrap().len(), 101);
    let (status, all) = get(&server, "/v1/sessions").await;
    assert_eq!((status, all["sessions"].as_array().unwrap().len()), (200, 203));
}

#[tokio::test]
async fn an_unknown_session_is_not_found_over_http() {
    let server = MockServer::start().await;
    let (status, problem) = get(&server, "/v1/sessions/nope").await;
    assert_eq!((status, problem["type"].as_str()), (404, Some("urn:sandbox-agent:error:session_not_found")));
}

#[tokio::test]
async fn models_modes_and_options_are_served_and_recorded_as_hints() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let id = client.session().await;
    let models =
        client.result(request(1, "_sandboxagent/session/list_models", json!({ "agent": "claude" }))).await;
    assert_eq!(models["currentModelId"], "default");
    assert_eq!(models["availableModels"].as_array().unwrap().len(), 4);
    for (method, params) in [
        ("session/set_mode", json!({ "sessionId": id, "modeId": "plan" })),
        ("session/set_model", json!({ "sessionId": id, "modelId": "mock-fast" })),
        ("session/set_config_option", json!({ "sessionId": id, "configId": "model", "value": "mock-fast" })),
    ] {
        client.result(request(method, method, params)).await;
    }
    let info = server.session(&id).unwrap();
    assert_eq!((&info["agentMode"], &info["model"]), (&json!("plan"), &json!("mock-fast")));
    let models =
        client.result(request(2, "_sandboxagent/session/list_models", json!({ "sessionId": id }))).await;
    assert_eq!(models["currentModelId"], "mock-fast");
}

#[tokio::test]
async fn sessions_are_resumed_forked_closed_and_deleted() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let id = client.session().await;
    let params = json!({ "sessionId": id, "cwd": "/", "mcpServers": [] });
    client.result(request(1, "session/resume", params.clone())).await;
    let fork = client.result(request(2, "session/fork", params)).await;
    assert_ne!(fork["sessionId"], json!(id));
    client.result(request(3, "session/close", json!({ "sessionId": id }))).await;
    let (_, gone) = client.post(prompt("p", &id, "x")).await;
    assert_eq!(gone["error"]["code"], -32002, "the agent has removed it");
    client.result(request(4, "session/delete", json!({ "sessionId": fork["sessionId"] }))).await;
    let list = client.result(request(5, "session/list", json!({}))).await;
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn agents_are_listed_and_installed_over_the_protocol_too() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let list = client.result(request(1, "_sandboxagent/agent/list", json!({}))).await;
    let mock = list["agents"].as_array().unwrap().iter().find(|agent| agent["id"] == "mock").unwrap();
    assert_eq!(mock["capabilities"].as_object().unwrap().len(), 18);
    let installed =
        client.result(request(2, "_sandboxagent/agent/install", json!({ "agent": "mock" }))).await;
    assert_eq!(installed, json!({ "already_installed": true, "artifacts": [] }));
    let params = json!({ "agent": "codex", "agentVersion": "1.2.3" });
    let installed = client.result(request(4, "_sandboxagent/agent/install", params)).await;
    assert_eq!(installed["already_installed"], false);
    server.control().fail_install("amp", "no network");
    let (status, problem) =
        client.post(request(5, "_sandboxagent/agent/install", json!({ "agent": "amp" }))).await;
    assert_eq!((status, &problem["details"]["stderr"]), (500, &json!("no network")));
    assert_eq!(
        client.post(request(3, "_sandboxagent/agent/install", json!({ "agent": "nope" }))).await.0,
        400
    );
}

#[tokio::test]
async fn an_agent_reports_title_and_mode_in_updates() {
    let steps = vec![
        Step::Update(
            json!({ "sessionUpdate": "session_info_update", "title": "reported", "updatedAt": "now" }),
        ),
        Step::Update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" })),
    ];
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let client = Client::new(&server);
    let id = client.session().await;
    client.result(prompt("p", &id, "x")).await;
    let list = client.result(request(1, "session/list", json!({}))).await;
    assert_eq!(
        (&list["sessions"][0]["title"], &list["sessions"][0]["updatedAt"]),
        (&json!("reported"), &json!("now"))
    );
    assert_eq!(server.session(&id).unwrap()["agentMode"], "plan");
}

#[tokio::test]
async fn sessions_of_two_agents_never_share_an_id() {
    let says = |text: &'static str| Script::new(move |_| vec![Step::Say(text.into())]);
    let server = MockServer::builder().agent("one", says("from one")).agent("two", says("from two"));
    let server = server.start().await;
    let client = Client::new(&server);
    let mut events = client.stream(None).await;
    let first = new_session(&client, json!({ "agent": "one" }), "/").await;
    let second = new_session(&client, json!({ "agent": "two" }), "/").await;
    assert_eq!([first.as_str(), second.as_str()], ["mock-session-1", "mock-session-2"]);
    for (id, session, text) in [("a", first, "from one"), ("b", second, "from two")] {
        client.result(prompt(id, &session, "go")).await;
        let seen = events.until_response(id).await;
        let said =
            seen.iter().map(|event| event.json()).find(|message| message["method"] == "session/update");
        let params = &said.unwrap()["params"];
        assert_eq!(params["sessionId"], session);
        assert_eq!(params["update"]["content"]["text"], text);
    }
}

#[tokio::test]
async fn a_crash_is_reported_alike_in_the_response_over_http_and_in_the_list() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::crash(4, ["why"])]));
    let server = server.start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let (_, body) = client.post(prompt("p", &session, "go")).await;
    let termination = &body["error"]["data"]["terminationInfo"];
    assert_eq!((&termination["exitCode"], &termination["stderr"]["head"]), (&json!(4), &json!("why")));
    let (status, info) = get(&server, &format!("/v1/sessions/{session}")).await;
    assert_eq!((status, &info["ended"]), (200, &json!(true)));
    assert_eq!(info["terminationInfo"], *termination);
    let list = client.result(request(1, "session/list", json!({}))).await;
    assert_eq!(list["sessions"][0]["_meta"][META]["terminationInfo"], *termination);
}
