//! Logging in and out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::connection::{Feature, Support};
use sandbox_agent_sdk::login::LoginKind;
use sandbox_agent_sdk::{Error, NewSession, ServerKind};
use serde_json::{Value, json};

use super::support::{KINDS, client, options, session, within};

fn offering(methods: &[&str]) -> Script {
    let methods: Vec<Value> = methods.iter().map(|id| json!({"id": id, "name": id})).collect();
    Script::default()
        .initialize(json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods}))
}

fn login_required() -> Step {
    Step::Fail { code: -32000, message: "Authentication required".into(), data: None }
}

/// Creating a session requires one of these logins first.
fn requiring(script: Script, accepted: &'static [&'static str]) -> Script {
    let logged_in = AtomicBool::new(false);
    script.on_request(move |method, params| match method {
        "authenticate" => {
            let is_accepted = params["methodId"].as_str().is_some_and(|id| accepted.contains(&id));
            logged_in.fetch_or(is_accepted, Ordering::SeqCst);
            Some(vec![if is_accepted { Step::Finish(json!({})) } else { login_required() }])
        }
        "session/new" if !logged_in.load(Ordering::SeqCst) => Some(vec![login_required()]),
        _ => None,
    })
}

#[tokio::test]
async fn a_login_with_an_api_key_variable_is_automatic() {
    for kind in KINDS {
        let script = offering(&["browser", "openai-api-key", "codex-api-key"]);
        let server =
            MockServer::builder().agent("mock", requiring(script, &["openai-api-key"])).start().await;
        session(&client(&server, kind)).await;
        let logins = server.messages("authenticate");
        assert_eq!(logins.len(), 1, "{kind}");
        assert_eq!(logins[0]["params"]["methodId"], "openai-api-key");
    }
}

#[tokio::test]
async fn an_agent_that_other_clients_share_is_logged_in_only_if_it_requires_it() {
    let server = MockServer::builder().agent("mock", offering(&["openai-api-key"])).start().await;
    let first = client(&server, ServerKind::Shared);
    session(&first).await;
    session(&client(&server, ServerKind::Shared)).await;
    within(first.restart_agent()).await.unwrap();
    assert!(server.messages("authenticate").is_empty(), "other clients may have another login");
}

#[tokio::test]
async fn an_automatic_login_of_a_shared_agent_follows_a_prompt_that_required_it() {
    let logged_in = Arc::new(AtomicBool::new(false));
    let of_turn = Arc::clone(&logged_in);
    let script = Script::new(move |_| match of_turn.load(Ordering::SeqCst) {
        true => vec![Step::Say("done".into())],
        false => vec![login_required()],
    });
    let methods = json!([{"id": "openai-api-key", "name": "Key"}]);
    let script = script
        .initialize(json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods}))
        .on_request(move |method, _| {
            (method == "authenticate").then(|| {
                logged_in.store(true, Ordering::SeqCst);
                vec![Step::Finish(json!({}))]
            })
        });
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let error = within(session.prompt("go").text()).await.unwrap_err();
    assert!(matches!(&error, Error::LoginRequired(_)) && error.maybe_executed(), "{error:?}");
    assert_eq!(within(session.prompt("go").text()).await.unwrap(), "done");
    assert_eq!(server.messages("authenticate").len(), 1);
}

#[tokio::test]
async fn no_automatic_login_needs_the_user_or_is_done_against_the_options() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", offering(&["browser"])).start().await;
        let client = client(&server, kind);
        session(&client).await;
        assert!(server.messages("authenticate").is_empty());
        within(client.authenticate("browser")).await.unwrap();
        assert_eq!(server.messages("authenticate")[0]["params"]["methodId"], "browser");

        let server = MockServer::builder().agent("mock", offering(&["anthropic-api-key"])).start().await;
        session(&options(&server, kind).auto_authenticate(false).build().unwrap()).await;
        assert!(server.messages("authenticate").is_empty());
    }
}

#[tokio::test]
async fn a_login_that_fails_does_not_fail_the_connection_and_a_crash_in_it_does() {
    for kind in KINDS {
        let answering = |step: fn() -> Step| {
            offering(&["anthropic-api-key"])
                .on_request(move |method, _| (method == "authenticate").then(|| vec![step()]))
        };
        let refusing =
            answering(|| Step::Fail { code: -32000, message: "Authentication failed".into(), data: None });
        let server = MockServer::builder().agent("mock", refusing).start().await;
        let client = client(&server, kind);
        session(&client).await;
        let error = within(client.authenticate("anthropic-api-key")).await.unwrap_err();
        assert!(matches!(&error, Error::Rpc { .. }) && error.is_login_required(), "{error:?}");

        let dying = offering(&["anthropic-api-key"]).on_request(|method, _| match method {
            "authenticate" => Some(vec![Step::crash(4, ["no key"])]),
            "session/new" => Some(vec![login_required()]),
            _ => None,
        });
        let server = MockServer::builder().agent("mock", dying).released_quirks(false).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let error = match within(client.connect()).await {
            Err(error) => error,
            Ok(_) => within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err(),
        };
        assert_eq!(error.termination().unwrap().exit_code, Some(4), "{kind}");
    }
}

#[tokio::test]
async fn login_methods_have_everything_that_a_user_needs() {
    let server_with = || {
        let methods = json!([{"id": "web", "name": "Browser", "description": "Opens a page"},
            {"id": "tty", "type": "terminal", "name": "Terminal", "args": ["login"], "env": {"MODE": "login"}}]);
        let initialize = json!({"protocolVersion": 1, "agentCapabilities": {"auth": {"logout": {}}},
            "agentInfo": {"name": "m", "title": "The agent", "version": "1"}, "authMethods": methods});
        MockServer::builder().agent("mock", Script::default().initialize(initialize))
    };
    for kind in KINDS {
        let server = server_with().start().await;
        let client = options(&server, kind).terminal_logins(true).auto_connect(false).build().unwrap();
        let can = within(client.connect()).await.unwrap();
        assert_eq!((can.agent_title.as_deref(), can.logout), (Some("The agent"), true));
        assert_eq!(can.login_methods[0].description.as_deref(), Some("Opens a page"));
        assert_eq!(can.login_methods[0].kind, LoginKind::Agent);
        // The command runs in the terminal of this program.
        let mut command = can.login_methods[1].terminal_command("printenv").unwrap();
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["login"]);
        assert!(!command.status().unwrap().success(), "there is no variable named `login`");
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"];
        assert_eq!(advertised["auth"]["terminal"], true);
        let server = server_with().start().await;
        session(&super::support::client(&server, kind)).await;
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"];
        assert_eq!(advertised["auth"]["terminal"], false, "by default it is not advertised");
    }
}

#[tokio::test]
async fn logging_out_is_one_call_and_an_agent_that_cannot_is_asked_once() {
    for kind in KINDS {
        let script = Script::default()
            .on_request(|method, _| (method == "logout").then(|| vec![Step::Finish(json!({}))]));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        within(client.logout()).await.unwrap();
        assert_eq!(server.messages("logout").len(), 1);
        assert_eq!(client.supports(Feature::Logout), Support::Yes);

        let script = Script::default().on_request(|method, _| {
            let refusal = Step::Fail { code: -32601, message: "Method not found".into(), data: None };
            (method == "logout").then(|| vec![refusal])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = super::support::client(&server, kind);
        for _ in 0..2 {
            assert!(matches!(within(client.logout()).await, Err(Error::Unsupported { .. })));
        }
        assert_eq!(server.messages("logout").len(), 1);
        assert_eq!(client.supports(Feature::Logout), Support::No);
    }
}

#[tokio::test]
async fn a_required_login_is_a_typed_error_with_the_login_methods() {
    for kind in KINDS {
        let variable = json!({"name": "API_KEY", "label": "Key"});
        let key = json!({"id": "key", "name": "API key", "type": "env_var", "vars": [variable]});
        let methods = json!([key, {"id": "browser", "name": "Browser"}]);
        let script = Script::default()
            .initialize(json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods}))
            .on_request(|method, _| {
                let refused =
                    || Step::Fail { code: -32000, message: "Authentication required".into(), data: None };
                matches!(method, "session/new" | "authenticate").then(|| vec![refused()])
            });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        let Error::LoginRequired(login) = &error else { panic!("{error:?}") };
        assert!(error.is_login_required() && !error.maybe_executed());
        assert_eq!(error.rpc_error().unwrap().code, -32000);
        let [key, browser] = &login.methods[..] else { panic!("{login:?}") };
        let LoginKind::Variables { variables, .. } = &key.kind else { panic!("{key:?}") };
        assert_eq!((key.id.as_str(), variables[0].name.as_str()), ("key", "API_KEY"));
        assert_eq!(browser.name, "Browser");
    }
}

#[tokio::test]
async fn every_login_by_api_key_is_tried_in_order_until_one_works() {
    for kind in KINDS {
        let key = |id: &str| json!({"id": id, "type": "env_var"});
        let methods = json!([{"id": "browser"}, {"id": "openai-api-key"}, key("second-key"), key("third-key"), key("last")]);
        let script = Script::default()
            .initialize(json!({"protocolVersion": 1, "agentCapabilities": {}, "authMethods": methods}));
        let server = MockServer::builder().agent("mock", requiring(script, &["third-key"])).start().await;
        session(&client(&server, kind)).await;
        let logins = server.messages("authenticate");
        let ids: Vec<_> = logins.iter().map(|login| login["params"]["methodId"].as_str().unwrap()).collect();
        assert_eq!(ids, ["openai-api-key", "second-key", "third-key"], "{kind}");
    }
}

#[tokio::test]
async fn a_login_takes_extra_parameters_and_can_be_undone() {
    for kind in KINDS {
        let script = offering(&["browser"]).on_request(|method, _| {
            matches!(method, "authenticate" | "logout").then(|| vec![Step::Finish(json!({}))])
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let extra = json!({"_meta": {"gateway": {"url": "http://g"}}, "methodId": "other"});
        within(client.authenticate_with("browser", extra.as_object().unwrap().clone())).await.unwrap();
        let sent = &server.messages("authenticate")[0]["params"];
        assert_eq!(
            (&sent["methodId"], &sent["_meta"]["gateway"]["url"]),
            (&json!("browser"), &json!("http://g"))
        );
        within(client.logout()).await.unwrap();
        assert_eq!(server.messages("logout").len(), 1);
    }
}

#[tokio::test]
async fn a_prompt_that_ends_with_a_login_error_may_have_been_executed() {
    for kind in KINDS {
        let refused = Step::Fail { code: -32000, message: "Authentication required".into(), data: None };
        let script = Script::steps(vec![Step::Say("begun".into()), refused]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("go").text()).await.unwrap_err();
        assert!(matches!(&error, Error::LoginRequired(_)) && error.maybe_executed(), "{error:?}");
    }
}

#[tokio::test]
async fn a_required_login_of_another_agent_of_the_endpoint_is_left_to_the_application() {
    let other = Script::new(|_| vec![login_required()]);
    let refusing =
        Script::default().on_request(|method, _| (method == "session/new").then(|| vec![login_required()]));
    let builder = MockServer::builder().agent("mock", offering(&["openai-api-key"]));
    let server = builder.agent("prompted", other).agent("refusing", refusing).start().await;
    let client = client(&server, ServerKind::Shared);
    let refused = within(client.new_session(NewSession::in_dir("/").agent("refusing"))).await.unwrap_err();
    let session = within(client.new_session(NewSession::in_dir("/").agent("prompted"))).await.unwrap();
    let failed = within(session.prompt("go").text()).await.unwrap_err();
    for error in [refused, failed] {
        let Error::LoginRequired(login) = &error else { panic!("{error:?}") };
        assert!(login.methods.is_empty(), "these are the methods of another agent: {login:?}");
    }
    assert!(server.messages("authenticate").is_empty(), "another agent is logged in");
}
