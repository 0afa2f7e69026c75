//! Terminals of processes, over a WebSocket.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use reqwest::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use reqwest::header::{SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::CapacityError;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use super::http::Http;
use super::processes::{PTY_END, ProcessExit};
use super::route::Route;
use crate::Error;
use crate::client::network::check_runtime;
use crate::convert::text::safe_error;
use crate::error::{Phase, Timeout};

const WHAT: &str = "connect terminal";

/// How much unsent input is buffered before sending waits.
const WRITE_BUFFER_BYTES: usize = 64 * 1024;

/// How much input one frame carries.
const INPUT_BYTES: usize = 16 * 1024;

/// The timeout of closing.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

type Socket = WebSocketStream<reqwest::Upgraded>;

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl TerminalSize {
    /// Creates a size from columns and rows.
    #[must_use]
    pub fn new(cols: u16, rows: u16) -> Self {
        Self { cols, rows }
    }
}

/// An event of a terminal.
#[derive(Debug)]
#[non_exhaustive]
pub enum TerminalEvent {
    /// Output of the process. A character may be split across two events.
    Data(Bytes),
    /// The server rejected an input or a resize. The terminal continues.
    Refused(String),
    /// The process has exited, and all its output was delivered. This is the last event.
    Exit(ProcessExit),
    /// The connection is lost. This is the last event.
    ///
    /// The process continues. Attach again with
    /// [`connect_terminal`](super::processes::Processes::connect_terminal).
    Disconnected(Error),
}

/// The terminal of a process.
///
/// Output is read from the socket only on demand, so nothing accumulates in the client. Released servers do not wait
/// for a slow client: they drop output that the client does not read fast enough.
/// [`logs`](super::processes::Processes::logs) returns the dropped output. Dropping the terminal leaves the process
/// running.
///
/// ```no_run
/// # async fn example(server: sandbox_agent_sdk::control::ControlPlane) -> Result<(), sandbox_agent_sdk::Error> {
/// use sandbox_agent_sdk::control::processes::CreateProcess;
/// use sandbox_agent_sdk::control::terminal::{TerminalEvent, TerminalSize};
///
/// let shell = server.processes().create(CreateProcess::new("sh").tty(true)).await?;
/// let mut terminal = server.processes().connect_terminal(&shell.id).await?;
/// terminal.resize(TerminalSize::new(120, 40)).await?;
/// terminal.send_input("ls; exit\n").await?;
/// while let Some(event) = terminal.next().await {
///     match event {
///         TerminalEvent::Data(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
///         other => println!("{other:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ProcessTerminal {
    input: TerminalInput,
    output: TerminalOutput,
}

/// The sending half of a terminal.
pub struct TerminalInput {
    sink: SplitSink<Socket, Message>,
}

/// The receiving half of a terminal.
pub struct TerminalOutput {
    stream: SplitStream<Socket>,
    process_id: String,
    /// Output that is dropped if the exit of the process comes next: see [`PTY_END`].
    held: Option<Bytes>,
    /// An event to deliver after the held output.
    next: Option<TerminalEvent>,
    ended: bool,
}

/// A message from the server.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum FromServer {
    #[serde(rename_all = "camelCase")]
    Ready {
        #[serde(default)]
        process_id: String,
    },
    #[serde(rename_all = "camelCase")]
    Exit {
        #[serde(default)]
        exit_code: Option<i64>,
    },
    Error {
        #[serde(default)]
        message: String,
    },
    /// A message type of a later version.
    #[serde(other)]
    Unknown,
}

impl FromServer {
    pub(crate) fn read(text: &str) -> Result<Self, Error> {
        acp_http_client::json::from_str(text).map_err(|source| Error::Decode {
            what: "read terminal".to_owned(),
            raw: text.to_owned(),
            source: Arc::new(safe_error(source)),
        })
    }
}

/// A message to the server.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum ToServer<'a> {
    Input { data: &'a str, encoding: &'static str },
    Resize { cols: u16, rows: u16 },
    Close,
}

impl ProcessTerminal {
    pub(super) async fn connect(http: Http, route: Result<Route, Error>) -> Result<Self, Error> {
        let route = route?;
        let key = generate_key();
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let value = HeaderValue::try_from(&key).map_err(|_| Error::config("the WebSocket key is invalid"))?;
        headers.insert(SEC_WEBSOCKET_KEY, value);
        let response = http.upgrade(WHAT, route, headers).await?;
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT).map(HeaderValue::as_bytes);
        if accepted != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            let start = "the server accepted a different WebSocket key".to_owned();
            return Err(Error::UnexpectedBody { status: 101, content_type: None, start });
        }
        let upgraded = response.upgrade().await.map_err(|error| lost(error.without_url()))?;
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(http.limits().terminal_message);
        config.max_frame_size = Some(http.limits().terminal_message);
        config.write_buffer_size = 0;
        config.max_write_buffer_size = WRITE_BUFFER_BYTES;
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
        let (sink, stream) = socket.split();
        let mut output =
            TerminalOutput { stream, process_id: String::new(), held: None, next: None, ended: false };
        let limit = http.timeouts().response;
        timeout(limit, output.ready(http.limits().process_id))
            .await
            .map_err(|_| Error::Timeout(Box::new(Timeout::new(Phase::Headers, WHAT, limit))))??;
        Ok(Self { input: TerminalInput { sink }, output })
    }

    /// Returns the id of the process.
    #[must_use]
    pub fn process_id(&self) -> &str {
        &self.output.process_id
    }

    /// Returns the next event, or `None` after the last.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<TerminalEvent> {
        self.output.next().await
    }

    /// Sends text or bytes to the process. See [`TerminalInput::send_input`].
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] if the socket is closed.
    pub async fn send_input(&mut self, input: impl AsRef<[u8]>) -> Result<(), Error> {
        self.input.send_input(input).await
    }

    /// Sets the size of the terminal for all attached clients.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] if the socket is closed.
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), Error> {
        self.input.resize(size).await
    }

    /// Detaches from the terminal, within two seconds. The process continues.
    pub async fn close(mut self) {
        self.input.close().await;
    }

    /// Splits the terminal, so that one task can send while another receives.
    #[must_use]
    pub fn split(self) -> (TerminalInput, TerminalOutput) {
        (self.input, self.output)
    }
}

impl TerminalInput {
    /// Sends text or bytes to the process. Waits while the server accepts no data.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] if the socket is closed.
    ///
    /// # Cancel safety
    /// Long input is sent in several frames. After a failure or a drop, some of them may have been sent.
    pub async fn send_input(&mut self, input: impl AsRef<[u8]>) -> Result<(), Error> {
        for piece in input.as_ref().chunks(INPUT_BYTES) {
            let data = STANDARD.encode(piece);
            self.send(&ToServer::Input { data: &data, encoding: "base64" }).await?;
        }
        Ok(())
    }

    /// Sets the size of the terminal for all attached clients.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] if the socket is closed.
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), Error> {
        self.send(&ToServer::Resize { cols: size.cols, rows: size.rows }).await
    }

    /// Detaches from the terminal, within two seconds. The process continues.
    pub async fn close(&mut self) {
        if check_runtime().is_err() {
            // Dropping the socket detaches too.
            return;
        }
        let closing = async {
            // An error means that the socket is already closed.
            let _ = self.send(&ToServer::Close).await;
            let _ = self.sink.close().await;
        };
        let _ = timeout(CLOSE_WITHIN, closing).await;
    }

    async fn send(&mut self, frame: &ToServer<'_>) -> Result<(), Error> {
        let text = serde_json::to_string(frame)
            .map_err(|source| Error::Encode { what: WHAT.to_owned(), source: Arc::new(source) })?;
        self.sink.send(Message::text(text)).await.map_err(lost)
    }
}

impl TerminalOutput {
    /// Returns the id of the process.
    #[must_use]
    pub fn process_id(&self) -> &str {
        &self.process_id
    }

    /// Returns the next event, or `None` after the last.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<TerminalEvent> {
        if let Some(event) = self.next.take() {
            return Some(event);
        }
        while !self.ended {
            let event = self.receive().await;
            let event = match event {
                Some(TerminalEvent::Data(bytes)) if bytes == PTY_END => {
                    self.held.replace(bytes).map(TerminalEvent::Data)
                }
                Some(TerminalEvent::Exit(exit)) => {
                    self.held = None;
                    Some(TerminalEvent::Exit(exit))
                }
                Some(event) => match self.held.take() {
                    Some(held) => {
                        self.next = Some(event);
                        Some(TerminalEvent::Data(held))
                    }
                    None => Some(event),
                },
                None => None,
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Waits for the server's `ready` message.
    async fn ready(&mut self, limit: usize) -> Result<(), Error> {
        match self.frame().await? {
            Frame::Said(FromServer::Ready { process_id }) if process_id.len() > limit => {
                let start = format!("the process id of the terminal has more than {limit} bytes");
                Err(Error::UnexpectedBody { status: 101, content_type: None, start })
            }
            Frame::Said(FromServer::Ready { process_id }) => {
                self.process_id = process_id;
                Ok(())
            }
            _ => {
                let start = "the first message of the terminal is not `ready`".to_owned();
                Err(Error::UnexpectedBody { status: 101, content_type: None, start })
            }
        }
    }

    /// Receives one frame and converts it to an event, if it is one.
    async fn receive(&mut self) -> Option<TerminalEvent> {
        let event = match self.frame().await {
            Ok(Frame::Data(bytes)) => TerminalEvent::Data(bytes),
            Ok(Frame::Said(FromServer::Exit { exit_code })) => {
                TerminalEvent::Exit(ProcessExit::from_code(exit_code))
            }
            Ok(Frame::Said(FromServer::Error { message })) => TerminalEvent::Refused(message),
            Ok(Frame::Said(FromServer::Ready { .. } | FromServer::Unknown)) => return None,
            Err(error) => TerminalEvent::Disconnected(error),
        };
        self.ended = matches!(event, TerminalEvent::Exit(_) | TerminalEvent::Disconnected(_));
        Some(event)
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            match self.stream.next().await {
                Some(Ok(Message::Binary(bytes))) => return Ok(Frame::Data(bytes)),
                Some(Ok(Message::Text(text))) => return Ok(Frame::Said(FromServer::read(&text)?)),
                // The socket answers pings. After a close frame the stream ends.
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::Capacity(CapacityError::MessageTooLong { size, max_size }))) => {
                    return Err(Error::MessageTooLarge { limit: max_size, seen: size, event_id: None });
                }
                Some(Err(error)) => return Err(lost(error)),
                None => return Err(lost(tungstenite::Error::ConnectionClosed)),
            }
        }
    }
}

enum Frame {
    Data(Bytes),
    Said(FromServer),
}

impl fmt::Debug for TerminalInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TerminalInput").finish_non_exhaustive()
    }
}

impl fmt::Debug for TerminalOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TerminalOutput").field("process_id", &self.process_id).finish_non_exhaustive()
    }
}

fn lost(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ConnectionLost { what: "read terminal".to_owned(), source: Arc::new(error) }
}
