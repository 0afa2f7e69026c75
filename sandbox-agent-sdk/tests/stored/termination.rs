//! What is stored of the end of an agent.

use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::{Event, NewSession, ServerKind};

use crate::support::{event, within};
use crate::world::{Ability, World, stored};

#[tokio::test]
async fn details_of_an_end_that_arrive_late_complete_the_record() {
    for is_reopened in [false, true] {
        let script = Script::new(|_| vec![Step::Say("begun".into()), Step::crash(3, ["late boom"])]);
        let script = script.initialize(Ability::Resume.initialize());
        let limit = Duration::from_secs(2);
        let server = MockServer::builder().agent("mock", script).request_timeout(limit).start().await;
        let world = World { server, directory: tempfile::tempdir().unwrap(), kind: ServerKind::PerAgent };
        let (client, sessions) = world.program().await;
        let mut events = client.events();
        let session = within(sessions.new_session_as("mine", NewSession::in_dir("/"))).await.unwrap();
        within(within(session.prompt("die")).await.unwrap().outcome()).await.unwrap_err();
        sessions.flush().await.unwrap();
        let info = session.record().await.unwrap().details.termination_info.expect("it has ended");
        assert_eq!((info.exit_code, info.stderr), (Some(3), None), "the details arrive later");
        if is_reopened {
            within(session.resume()).await.unwrap();
        }
        event(&mut events, |event| matches!(event, Event::TerminationDetails(_)).then_some(())).await;
        sessions.flush().await.unwrap();
        let info = session.record().await.unwrap().details.termination_info;
        assert_eq!(info.is_none(), is_reopened, "{info:?}");
        let is_complete = |info: sandbox_agent_sdk::TerminationInfo| {
            (info.exit_code, info.last_stderr_lines(5)) == (Some(3), vec!["late boom"])
        };
        assert!(info.is_none_or(is_complete));
        let kept = stored(&**sessions.store(), "mine").await;
        let details = kept.iter().find(|event| event.kind.as_str() == "termination_details").unwrap();
        assert!(details.termination_info().is_some_and(is_complete), "{details:?}");
    }
}
