//! A terminal on the server's machine.

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use crossterm::terminal::{disable_raw_mode, enable_raw_mode, size};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::processes::{CreateProcess, ProcessExit, Processes};
use sandbox_agent_sdk::control::terminal::{TerminalEvent, TerminalInput, TerminalOutput, TerminalSize};
use sandbox_agent_sdk::text::printable;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Stdin, Stdout, stdin, stdout};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use crate::Server;

/// How many times a lost connection is reopened before giving up.
const ATTEMPTS: u32 = 10;

/// The pause before each attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// The end-of-input character of a terminal.
const END_OF_TRANSMISSION: &str = "\x04";

/// The exit code after a signal, and if the server is unreachable.
const FAILED: u8 = 255;

/// Runs the command from the arguments, or a shell, and connects the local terminal to it.
pub async fn run() -> ExitCode {
    let code = match pass_through().await {
        Ok(exit) => exit.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED),
        Err(error) => {
            eprintln!("remote_shell: {error}");
            FAILED
        }
    };
    // A pending read of standard input would delay a normal exit.
    std::process::exit(code.into())
}

/// The local terminal, in raw mode if it is one.
struct Local {
    input: Stdin,
    output: Stdout,
    resized: Signal,
    /// Whether the input has ended.
    at_end: bool,
}

impl Local {
    fn open() -> io::Result<Self> {
        let resized = signal(SignalKind::window_change())?;
        if io::stdin().is_terminal() {
            enable_raw_mode()?;
        }
        Ok(Self { input: stdin(), output: stdout(), resized, at_end: false })
    }

    fn size() -> Option<TerminalSize> {
        io::stdout().is_terminal().then(size)?.ok().map(|(cols, rows)| TerminalSize::new(cols, rows))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // An error means that there is no raw mode to restore.
        let _ = disable_raw_mode();
    }
}

async fn pass_through() -> Result<ProcessExit, Box<dyn std::error::Error>> {
    let server = Server::find().await;
    let mut builder = ControlPlane::builder(&server.url);
    if let Some(token) = &server.token {
        builder = builder.token(token);
    }
    let processes = builder.build()?.processes();
    let mut words = std::env::args().skip(1);
    let program = words.next().unwrap_or_else(|| "sh".to_owned());
    let process =
        processes.create(CreateProcess::new(program).args(words).tty(true).interactive(true)).await?;
    let mut local = Local::open()?;
    let exit = attach(&processes, &process.id, &mut local).await?;
    // The record is no longer needed.
    let _ = processes.delete(&process.id).await;
    Ok(exit)
}

/// Attaches to the terminal until the process exits. Reattaches if the connection is lost.
async fn attach(
    processes: &Processes,
    id: &str,
    local: &mut Local,
) -> Result<ProcessExit, Box<dyn std::error::Error>> {
    let mut attempts = 0;
    loop {
        let lost: Error = match processes.connect_terminal(id).await {
            Ok(terminal) => {
                attempts = 0;
                let (mut input, mut output) = terminal.split();
                match relay(local, &mut input, &mut output).await? {
                    Ok(exit) => return Ok(exit),
                    Err(lost) => lost,
                }
            }
            Err(error) if error.http().is_some() => return Err(error.into()),
            Err(error) => error,
        };
        attempts += 1;
        if attempts > ATTEMPTS {
            return Err(lost.into());
        }
        eprint!("\r\n[{lost}; connecting again]\r\n");
        sleep(PAUSE).await;
    }
}

/// Relays keys, output and sizes until the process exits or the connection is lost.
async fn relay(
    local: &mut Local,
    input: &mut TerminalInput,
    output: &mut TerminalOutput,
) -> io::Result<Result<ProcessExit, Error>> {
    if let Some(size) = Local::size()
        && let Err(lost) = input.resize(size).await
    {
        return Ok(Err(lost));
    }
    let mut keys = [0; 4096];
    loop {
        let sent = tokio::select! {
            read = local.input.read(&mut keys), if !local.at_end => match read? {
                0 => {
                    local.at_end = true;
                    input.send_input(END_OF_TRANSMISSION).await
                }
                length => input.send_input(&keys[..length]).await,
            },
            _ = local.resized.recv() => match Local::size() {
                Some(size) => input.resize(size).await,
                None => Ok(()),
            },
            event = output.next() => match event {
                Some(TerminalEvent::Data(bytes)) => {
                    local.output.write_all(&bytes).await?;
                    local.output.flush().await?;
                    Ok(())
                }
                Some(TerminalEvent::Exit(exit)) => return Ok(Ok(exit)),
                Some(TerminalEvent::Disconnected(lost)) => return Ok(Err(lost)),
                Some(TerminalEvent::Refused(message)) => {
                    eprint!("\r\n[{}]\r\n", printable(&message));
                    Ok(())
                }
                Some(_) | None => Ok(()),
            },
        };
        if let Err(lost) = sent {
            return Ok(Err(lost));
        }
    }
}
