//! The processes of agents, while the chat runs and when it ends.

use sdk_tests::eventually;
use tokio::io::AsyncWriteExt;

use super::agent::Process;
use super::pipe::{chat_in, end, feed};

#[tokio::test]
async fn a_list_of_sessions_leaves_no_agent_behind() {
    let agent = Process::new();
    let mut chat = chat_in(None, &["--agent-command", &agent.command()], &[("IGNORES_END", "1")]);
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"hello\n/resume\n/resume\n").await.unwrap();
    eventually("a process for each list", || agent.starts() == 3).await;
    eventually("the end of these processes", || agent.running() == 1).await;
    drop(input);
    assert_eq!(end(chat).await.code, 0);
    eventually("the end of the agent", || agent.running() == 0).await;
}

#[tokio::test]
async fn an_agent_may_write_its_last_turn_to_disk_before_it_ends() {
    let agent = Process::new();
    let chat = chat_in(None, &["--agent-command", &agent.command()], &[("WRITES_LATE", "1")]);
    let ended = feed(chat, "hello\n").await;
    assert_eq!((ended.code, agent.turns()), (0, 1), "{}", ended.notes);
    assert_eq!(agent.running(), 0);
}
