//! Permissions and questions: named policies, decisions of a user, and a question with a form.
//!
//! In each turn, the agent of the embedded server requests three permissions and asks one question. A task reads the
//! events and decides in place of a user.

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::{QuestionKind, QuestionSupport};
use sandbox_agent_sdk::text::printable;
use sandbox_agent_sdk::update::ToolKind;
use sandbox_agent_sdk::{Error, Event, Events, NewSession, PermissionDecision, PermissionPolicy};
use sdk_examples::Server;
use serde_json::json;

/// The steps of the embedded agent for each prompt.
fn curious() -> Script {
    let call = |id: &str, title: &str, kind: &str| {
        let mut call = ToolCall::new(id, title);
        call.kind = kind.to_owned();
        Step::AskPermission(Permission::new(call).then(|outcome| {
            let chosen = outcome["optionId"].as_str().unwrap_or("cancelled").to_owned();
            vec![Step::Say(format!("[{chosen}] "))]
        }))
    };
    let schema = json!({"properties": {"branch": {"type": "string", "enum": ["main", "dev"]}}, "required": ["branch"]});
    Script::steps(vec![
        call("1", "Read notes.txt", "read"),
        call("2", "Edit main.rs", "edit"),
        call("3", "rm -rf target", "execute"),
        Step::AskQuestion { message: "Which branch?".into(), schema },
    ])
}

/// Decides the requests that the policy leaves open. Dropping a request without a response cancels it.
async fn person(mut events: Events) {
    while let Some(event) = events.next().await {
        match event {
            Event::Permission(request) => {
                let title = request.tool_call().and_then(|call| call.title.as_deref()).unwrap_or("something");
                println!("  asked: may I {}?", printable(title));
                if let Err(late) = request.allow_once() {
                    println!("  {late}");
                }
            }
            Event::Question(request) => {
                println!("  asked: {}", printable(request.message().unwrap_or_default()));
                if let QuestionKind::Form(form) = request.kind() {
                    println!("  an invalid answer: {:?}", form.check(&json!({"branch": "nowhere"})));
                    let _ = request.answer(&json!({"branch": "dev"}));
                }
            }
            _ => {}
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let server = Server::find_or_start(MockServer::builder().agent("mock", curious())).await;
    let own =
        PermissionPolicy::function(|request| match request.tool_call().and_then(|call| call.kind.as_ref()) {
            Some(ToolKind::Read) => PermissionDecision::Option("allow_once".into()),
            Some(ToolKind::Execute) => PermissionDecision::Refuse,
            _ => PermissionDecision::Ask,
        });
    use PermissionPolicy::{AcceptEdits, Ask, BypassPermissions, Deny};
    for policy in [Ask, AcceptEdits, BypassPermissions, Deny, own] {
        println!("{policy:?}");
        let options = server.options().permissions(policy);
        let client = options.questions(QuestionSupport::Forms).build()?;
        let person = tokio::spawn(person(client.events().deciding()));
        let session = client.new_session(NewSession::in_dir("/")).await?;
        println!("  outcome: {}", printable(&session.prompt("clean up").text().await?));
        client.disconnect().await?;
        person.abort();
    }
    Ok(())
}
