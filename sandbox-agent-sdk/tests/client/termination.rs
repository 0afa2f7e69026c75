//! How agents and sessions end, and how that is reported.

use std::time::Duration;

use mock_server::{Fault, MockServer, ProcessAgent, Reply, Script, Step};
use sandbox_agent_sdk::termination::{EndReason, TerminatedBy};
use sandbox_agent_sdk::thread::TurnFailure;
use sandbox_agent_sdk::{ConnectionState, Event, NewSession, OpenSession, ServerKind};
use serde_json::json;

use super::support::{
    KINDS, LIMIT, client, ends_so_far, event, options, session, session_ended, text, timeouts, within,
};

/// An agent that sends some text and dies.
fn dies(step: Step) -> Script {
    Script::new(move |turn| match turn.text.as_str() {
        "die" => vec![Step::Say("partial ".into()), Step::Say("answer".into()), step.clone()],
        other => vec![Step::Say(format!("you said {other}"))],
    })
}

/// An agent that ends its turn and dies while it is idle.
fn dies_idle(code: i32) -> Script {
    Script::new(move |turn| match turn.text.as_str() {
        "die later" => {
            let pause = Step::Wait(Duration::from_millis(50));
            vec![Step::Answer("end_turn".into()), pause, Step::crash(code, ["idle boom"])]
        }
        other => vec![Step::Say(format!("you said {other}"))],
    })
}

#[tokio::test]
async fn a_crash_during_a_turn_is_an_error_after_the_partial_text() {
    for kind in KINDS {
        let script = dies(Step::crash(3, ["boom line 1", "boom line 2"]));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = client.events();
        let mut turn = session.prompt("die");
        let mut updates = Vec::new();
        while let Some(update) = within(turn.next()).await {
            updates.push(update);
        }
        let error = within(turn.outcome()).await.unwrap_err();
        assert_eq!(text(&updates), "partial answer");
        let info = error.termination().unwrap();
        assert_eq!(
            (&info.reason, &info.terminated_by, info.exit_code),
            (&EndReason::Error, &TerminatedBy::Agent, Some(3))
        );
        assert!(info.is_crash() && error.maybe_executed());
        assert_eq!(error.is_terminal(), kind == ServerKind::PerAgent);
        let ended = session_ended(&mut events).await;
        assert_eq!((ended.session_id.as_str(), &ended.termination), (session.id(), info));
        assert_eq!(session.termination().as_ref(), Some(info));
        assert!(TurnFailure::from(&error).termination.is_some());
    }
}

#[tokio::test]
async fn the_termination_includes_stderr() {
    for kind in KINDS {
        let script = dies(Step::crash(3, ["boom line 1", "boom line 2"]));
        let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("die").outcome()).await.unwrap_err();
        let info = error.termination().unwrap();
        assert_eq!(info.last_stderr_lines(10), ["boom line 1", "boom line 2"], "{kind}");
        assert!(
            info.to_string().contains("exit code 3") && info.to_string().contains("boom line 2"),
            "{info}"
        );
    }
}

#[tokio::test]
async fn late_termination_details_are_not_waited_for() {
    let script = dies(Step::crash(3, ["boom"]));
    let limit = Duration::from_secs(100);
    let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
    let session = session(&client(&server, ServerKind::PerAgent)).await;
    let error = within(session.prompt("die").outcome()).await.unwrap_err();
    let info = error.termination().unwrap();
    assert_eq!((info.exit_code, &info.stderr), (Some(3), &None));
}

#[tokio::test]
async fn the_end_of_an_agent_is_published_while_its_call_still_waits_for_details() {
    let script = dies(Step::crash(3, ["boom"]));
    let limit = Duration::from_secs(100);
    let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
    // Longer than any test runs.
    let times = timeouts().termination(10 * LIMIT);
    let client = options(&server, ServerKind::PerAgent).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let _turn = session.prompt("die");
    assert_eq!(session_ended(&mut events).await.termination.exit_code, Some(3));
    assert!(matches!(client.state(), ConnectionState::AgentEnded(_)));
}

#[tokio::test]
async fn late_termination_details_within_the_timeout_are_joined() {
    let script = dies(Step::crash(3, ["late boom"]));
    let limit = Duration::from_millis(300);
    let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
    let times = timeouts().termination(Duration::from_secs(5));
    let client = options(&server, ServerKind::PerAgent).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let error = within(session.prompt("die").outcome()).await.unwrap_err();
    assert_eq!(error.termination().unwrap().last_stderr_lines(5), ["late boom"]);
    assert_eq!(error.problem().map(|problem| problem.short_kind()), Some("agent_process_exited"));
    let ended = session_ended(&mut events).await.termination;
    assert_eq!((ended.exit_code, ended.stderr), (Some(3), None), "the end is published at once");
    let details = event(&mut events, |event| match event {
        Event::TerminationDetails(details) => Some(details.termination),
        _ => None,
    })
    .await;
    assert_eq!((details.exit_code, details.last_stderr_lines(5)), (Some(3), vec!["late boom"]));
    assert_eq!(session.termination(), Some(details.clone()));
    assert_eq!(client.termination(), Some(details));
    assert!(ends_so_far(&mut events).is_empty(), "the end is published once");
}

#[tokio::test]
async fn termination_details_that_arrive_after_the_calls_have_failed_are_published() {
    for reopened in [false, true] {
        let script = dies(Step::crash(3, ["late boom"]));
        let limit = Duration::from_secs(2);
        let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
        let client = client(&server, ServerKind::PerAgent);
        let session = session(&client).await;
        let mut events = client.events();
        let error = within(session.prompt("die").outcome()).await.unwrap_err();
        assert_eq!(error.termination().unwrap().stderr, None);
        if reopened {
            within(client.restart_agent()).await.unwrap();
            within(client.resume_session(session.id(), OpenSession::in_dir("/work"))).await.unwrap();
        }
        let details = event(&mut events, |event| match event {
            Event::TerminationDetails(details) => Some(details.termination),
            _ => None,
        })
        .await;
        assert_eq!((details.exit_code, details.last_stderr_lines(5)), (Some(3), vec!["late boom"]));
        match reopened {
            true => assert_eq!((session.termination(), client.termination()), (None, None)),
            false => assert_eq!(
                (session.termination(), client.termination()),
                (Some(details.clone()), Some(details))
            ),
        }
        assert_eq!(ends_so_far(&mut events).len(), 0, "the end is published once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_termination_details_are_published_by_a_runtime_with_several_threads() {
    let script = dies(Step::crash(3, ["late boom"]));
    let limit = Duration::from_secs(2);
    let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
    let crashes = (0..8).map(|_| {
        let client = client(&server, ServerKind::PerAgent);
        tokio::spawn(async move {
            let session = session(&client).await;
            let mut events = session.events();
            within(session.prompt("die").outcome()).await.unwrap_err();
            event(&mut events, |event| matches!(event, Event::TerminationDetails(_)).then_some(())).await;
        })
    });
    for crash in crashes.collect::<Vec<_>>() {
        crash.await.unwrap();
    }
}

#[tokio::test]
async fn each_session_of_a_dead_agent_ends_once() {
    for kind in KINDS {
        let script = dies(Step::crash(1, ["boom"]));
        let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
        let client = client(&server, kind);
        let (one, two, three) = (session(&client).await, session(&client).await, session(&client).await);
        let mut events = client.events();
        within(one.prompt("die").outcome()).await.unwrap_err();
        let mut ended = Vec::new();
        while ended.len() < 3 {
            ended.push(session_ended(&mut events).await.session_id);
        }
        ended.sort();
        let mut ids = [one.id(), two.id(), three.id()];
        ids.sort_unstable();
        assert_eq!(ended, ids);
        // Later reports do not end them again.
        for session in [&one, &two, &three] {
            within(session.prompt("hello").outcome()).await.unwrap_err();
        }
        assert!(ends_so_far(&mut events).is_empty());
    }
}

#[tokio::test]
async fn the_death_of_an_idle_agent_is_reported_and_later_calls_fail_without_http() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", dies_idle(7)).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = session.events();
        within(session.prompt("die later").outcome()).await.unwrap();
        let ended = session_ended(&mut events).await.termination;
        assert_eq!((ended.exit_code, ended.is_crash()), (Some(7), true));
        server.forget_requests();
        for _ in 0..100 {
            let error = within(session.prompt("hello").outcome()).await.unwrap_err();
            assert_eq!(error.termination(), Some(&ended));
            assert!(!error.maybe_executed());
        }
        assert!(server.messages("session/prompt").is_empty(), "{kind}");
        if kind == ServerKind::PerAgent {
            let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
            assert_eq!(error.termination(), Some(&ended));
            assert_eq!(client.termination(), Some(ended.clone()));
            assert!(server.requests().iter().all(|request| request.method != "POST"));
            assert_eq!(client.state(), ConnectionState::AgentEnded(Box::new(ended.clone())));
        }
        let info = within(session.info()).await;
        match kind {
            ServerKind::PerAgent => assert!(info.unwrap_err().is_terminal()),
            _ => assert_eq!(info.unwrap().termination_info.unwrap().exit_code, Some(7)),
        }
    }
}

#[tokio::test]
async fn one_call_restarts_the_agent() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", dies(Step::crash(1, ["boom"]))).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        within(session.prompt("die").outcome()).await.unwrap_err();
        within(client.restart_agent()).await.unwrap();
        assert_eq!(client.state(), ConnectionState::Connected);
        assert!(within(session.prompt("hello").outcome()).await.unwrap_err().termination().is_some());
        let revived = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap();
        assert_eq!(within(revived.prompt("hello").text()).await.unwrap(), "you said hello");
        assert_eq!(session.termination(), None);
        let fresh = super::support::session(&client).await;
        assert_eq!(within(fresh.prompt("you").text()).await.unwrap(), "you said you");
    }
}

#[tokio::test]
async fn a_second_death_of_a_restarted_agent_is_reported_again() {
    for kind in KINDS {
        let script = dies(Step::crash(1, ["boom"]));
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let mut events = client.events();
        let mut session = session(&client).await;
        for _ in 0..3 {
            within(session.prompt("die").outcome()).await.unwrap_err();
            session_ended(&mut events).await;
            within(client.restart_agent()).await.unwrap();
            session = within(client.load_session(session.id(), OpenSession::in_dir("/"))).await.unwrap();
        }
        assert!(ends_so_far(&mut events).is_empty());
    }
}

#[tokio::test]
async fn death_by_a_signal_is_reported_as_a_signal() {
    for kind in KINDS {
        let script = dies(Step::killed(9, ["oom"]));
        let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("die").outcome()).await.unwrap_err();
        let info = error.termination().unwrap();
        assert_eq!((&info.reason, info.exit_code), (&EndReason::Error, None));
        if kind == ServerKind::Shared {
            assert_eq!(info.signal.as_deref(), Some("SIGKILL"));
        }
    }
}

#[tokio::test]
async fn a_clean_exit_is_not_a_crash() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", dies(Step::Exit(0))).released_quirks(false).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("die");
        let error = within(turn.outcome()).await.unwrap_err();
        let info = error.termination().unwrap();
        assert_eq!((&info.reason, info.is_crash()), (&EndReason::Completed, false), "{kind}");
        assert!(within(turn.next()).await.is_some());
    }
}

#[tokio::test]
async fn a_crash_while_connecting_is_the_error_of_connecting() {
    for kind in KINDS {
        let script = Script::default()
            .on_request(|method, _| (method == "initialize").then(|| vec![Step::crash(2, ["no licence"])]));
        let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let error = within(client.connect()).await.unwrap_err();
        let info = error.termination().unwrap_or_else(|| panic!("{kind}: {error:?}"));
        assert_eq!((info.exit_code, info.last_stderr_lines(1)), (Some(2), vec!["no licence"]));
        assert_eq!(client.state(), ConnectionState::Disconnected);
    }
}

#[tokio::test]
async fn a_crash_while_a_session_is_created_fails_that_call() {
    for kind in KINDS {
        let script = Script::default()
            .on_request(|method, _| (method == "session/new").then(|| vec![Step::crash(2, ["no disk"])]));
        let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
        let client = client(&server, kind);
        let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        assert_eq!(error.termination().unwrap().exit_code, Some(2), "{kind}");
        assert_eq!(error.is_terminal(), kind == ServerKind::PerAgent);
    }
}

#[tokio::test]
async fn the_next_call_detects_a_dead_agent_if_its_exit_notification_was_lost() {
    let server = MockServer::builder().agent("mock", dies_idle(4)).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    let mut events = client.events();
    // From now on the stream is open and silent.
    server.inject(Fault::StreamStall);
    server.inject(Fault::StreamCutAt { byte: 0, cut: mock_server::Cut::Dropped });
    let mut turn = session.prompt("die later");
    within(turn.outcome()).await.unwrap();
    let error = within(async {
        loop {
            match session.prompt("hello").outcome().await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => break error,
            }
        }
    })
    .await;
    assert!(error.termination().is_some(), "{error:?}");
    assert_eq!(session_ended(&mut events).await.session_id, session.id());
}

#[tokio::test]
async fn a_session_that_ends_while_its_post_hangs_fails_at_once() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut turn = session.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let data = json!({"reason": "error", "terminated_by": "agent", "message": "mock process crashed", "exit_code": 1,
        "stderr": {"head": "a\nb", "truncated": false, "total_lines": 2}});
    let notice = json!({"jsonrpc": "2.0", "method": "_sandboxagent/session/ended",
        "params": {"session_id": session.id(), "data": data}});
    server.emit(notice.clone());
    server.emit(notice);
    let error = within(turn.outcome()).await.unwrap_err();
    let info = error.termination().unwrap();
    assert_eq!((info.exit_code, info.message.as_deref()), (Some(1), Some("mock process crashed")));
    assert!(!error.is_terminal());
}

#[tokio::test]
async fn a_real_process_that_dies_at_once_is_reported_with_code_and_stderr() {
    for kind in KINDS {
        let words = "read line; echo 'cannot find my config' >&2; exit 42";
        let agent = ProcessAgent::new("sh").args(["-c", words]);
        let server = MockServer::builder().agent("mock", agent).released_quirks(false).start().await;
        let client = options(&server, kind).auto_connect(false).build().unwrap();
        let error = within(client.connect()).await.unwrap_err();
        let info = error.termination().unwrap_or_else(|| panic!("{kind}: {error:?}"));
        assert_eq!((info.exit_code, info.last_stderr_lines(1)), (Some(42), vec!["cannot find my config"]));
    }
}

#[tokio::test]
async fn a_session_that_ended_before_this_client_connected_is_reported_with_details() {
    let server = MockServer::builder().agent("mock", dies(Step::crash(6, ["boom"]))).start().await;
    let first = client(&server, ServerKind::Shared);
    let dead = session(&first).await;
    within(dead.prompt("die").outcome()).await.unwrap_err();
    let second = client(&server, ServerKind::Shared);
    let session = second.session(dead.id());
    for _ in 0..2 {
        let error = within(session.prompt("hello").outcome()).await.unwrap_err();
        assert_eq!(error.termination().unwrap().exit_code, Some(6), "{error:?}");
    }
    assert_eq!(server.messages("session/prompt").len(), 2, "one for the crash, one that reports it");
}

#[tokio::test]
async fn the_error_of_the_call_has_the_details_if_the_exit_notification_was_lost() {
    let script = dies(Step::crash(5, ["only in the answer"]));
    let server = MockServer::builder().agent("mock", script).released_quirks(false).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    let mut events = client.events();
    // From now on the stream is open and silent.
    server.inject(Fault::StreamStall);
    server.inject(Fault::StreamCutAt { byte: 0, cut: mock_server::Cut::Dropped });
    let error = within(session.prompt("die").outcome()).await.unwrap_err();
    let info = error.termination().unwrap();
    assert_eq!((info.exit_code, info.last_stderr_lines(1)), (Some(5), vec!["only in the answer"]));
    assert_eq!(session_ended(&mut events).await.termination.exit_code, Some(5));
    assert_eq!(session.termination().as_ref(), Some(info));
    assert!(ends_so_far(&mut events).is_empty());
}

#[tokio::test]
async fn several_tasks_that_restart_the_agent_get_the_same_one() {
    let server = MockServer::builder().agent("mock", dies(Step::crash(1, ["boom"]))).start().await;
    let client = client(&server, ServerKind::PerAgent);
    let session = session(&client).await;
    within(session.prompt("die").outcome()).await.unwrap_err();
    let tasks: Vec<_> = (0..5).map(|_| tokio::spawn(client.restart_agent())).collect();
    for task in tasks {
        within(task).await.unwrap().unwrap();
    }
    assert_eq!(server.messages("initialize").len(), 2, "one for the first agent, one for the second");
}

#[tokio::test]
async fn a_prompt_lost_with_its_agent_may_have_run_and_an_unsent_one_has_not() {
    for (title, may_have_run) in [("agent_exited", true), ("write_failed", false)] {
        let server = MockServer::start().await;
        let session = session(&client(&server, ServerKind::Shared)).await;
        let body =
            json!({"type": "about:blank", "title": title, "status": 502, "detail": "gone"}).to_string();
        let reply = Some(Reply { body, content_type: Some("application/json".into()), ..Reply::default() });
        server.inject(Fault::PostStatus { status: 502, execute: false, reply }.on_method("session/prompt"));
        let error = within(session.prompt("hello").outcome()).await.unwrap_err();
        assert!(error.termination().is_some(), "{error:?}");
        assert_eq!(error.maybe_executed(), may_have_run, "{title}");
    }
}

#[tokio::test]
async fn a_crash_without_details_is_reported_before_the_disconnection() {
    let server = MockServer::builder().agent("mock", dies(Step::crash(3, ["boom"]))).start().await;
    // The client would wait for details longer than this test runs.
    let times = timeouts().termination(Duration::from_secs(60));
    let client = options(&server, ServerKind::PerAgent).timeouts(times).build().unwrap();
    let session = session(&client).await;
    server.inject(Fault::PostHangs.on_method("session/prompt"));
    let (mut events, mut ends) = (client.events(), client.events());
    let mut turn = session.prompt("die");
    while within(turn.next()).await.is_some_and(|update| update.to_string() != "answer") {}
    let posts = server.requests();
    let path = posts.iter().find_map(|request| request.path.strip_prefix("/v1/acp/")).unwrap();
    let behind = || json!({"jsonrpc": "2.0", "method": "_x/behind"});
    // The server sends this event after the exit notification, so the client has read the notification.
    within(async {
        loop {
            assert!(server.emit_to(path, behind()));
            let noticed = tokio::time::timeout(Duration::from_millis(50), async {
                super::support::event(&mut events, |event| match event {
                    Event::Other { method, .. } => (method == "_x/behind").then_some(()),
                    _ => None,
                })
                .await;
            });
            if noticed.await.is_ok() {
                return;
            }
        }
    })
    .await;
    within(client.disconnect()).await.unwrap();
    let error = within(turn.outcome()).await.unwrap_err();
    let info = error.termination().expect("it is a crash");
    assert!(info.is_crash() && !info.requested, "{info:?}");
    assert_eq!(info.exit_code, Some(3));
    let ended = session_ended(&mut ends).await;
    assert_eq!((ended.termination.exit_code, ended.termination.is_crash()), (Some(3), true));
    assert!(ends_so_far(&mut ends).is_empty(), "the end is published once");
}
