//! Serves the agent's requests for files and terminals.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use super::files::{FileAccess, LineRange, ReadText, TextFiles, WriteText};
#[cfg(all(feature = "terminals", unix))]
use super::terminals::{TerminalCommand, TerminalExit, Terminals};
use crate::error::RpcError;
use crate::requests::{AgentRequest, RequestHandler, Response};

/// How many requests are served at once by default.
const MAX_CALLS: usize = 256;

/// Serves the agent's requests for files and terminals of this machine.
///
/// The [options of a client](crate::ClientOptions::files) create it for you. To serve an agent without a client of
/// this crate, advertise the [`capabilities`](Self::capabilities) and pass the agent's requests to
/// [`respond`](Self::respond).
#[derive(Clone)]
#[must_use = "tools do nothing until an agent may use them"]
pub struct AgentTools {
    files: Option<Arc<dyn TextFiles>>,
    #[cfg(all(feature = "terminals", unix))]
    terminals: Option<Terminals>,
    /// Chooses the file access to advertise to an agent.
    pub(super) advertised: Option<AccessFunction>,
    max_calls: usize,
    /// Limits how many requests are served concurrently.
    calls: Arc<Semaphore>,
}

/// Chooses the file access to advertise, by the agent's name.
pub(super) type AccessFunction = Arc<dyn Fn(&str) -> FileAccess + Send + Sync>;

impl AgentTools {
    /// Creates an empty set of tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds access to these files.
    pub fn files(self, files: impl TextFiles) -> Self {
        self.shared_files(Arc::new(files))
    }

    /// Adds access to files that are shared with other code.
    pub fn shared_files(mut self, files: Arc<dyn TextFiles>) -> Self {
        self.files = Some(files);
        self
    }

    /// Adds these terminals.
    #[cfg(all(feature = "terminals", unix))]
    pub fn terminals(mut self, terminals: Terminals) -> Self {
        self.terminals = Some(terminals);
        self
    }

    /// Sets how many requests are served concurrently, over all sessions. Default 256.
    ///
    /// Further requests are rejected with the reason `too_many_calls`. A request that waits for the exit of a command
    /// counts too.
    pub fn max_calls(mut self, count: usize) -> Self {
        self.max_calls = count.min(Semaphore::MAX_PERMITS);
        self.calls = Arc::new(Semaphore::new(self.max_calls));
        self
    }

    /// Returns the capabilities to advertise to the agent, in the format of `clientCapabilities`.
    #[must_use]
    pub fn capabilities(&self) -> Value {
        self.capabilities_with(|access| access)
    }

    /// Returns the capabilities. `choose` maps the allowed file access to the advertised one.
    fn capabilities_with(&self, choose: impl FnOnce(FileAccess) -> FileAccess) -> Value {
        let allowed = self.files.as_ref().map_or(FileAccess::Nothing, |files| files.access());
        let access = choose(allowed);
        #[cfg(all(feature = "terminals", unix))]
        let terminal = self.terminals.is_some();
        #[cfg(not(all(feature = "terminals", unix)))]
        let terminal = false;
        json!({
            "fs": {
                "readTextFile": access.reads() && allowed.reads(),
                "writeTextFile": access.writes() && allowed.writes(),
            },
            "terminal": terminal,
        })
    }

    /// Serves a request of the agent.
    ///
    /// Returns `None` if the request is not for these tools, or if the tools are not enabled. Dropping the future
    /// cancels the request.
    #[must_use]
    pub fn respond(&self, method: &str, params: &Value) -> Option<BoxFuture<'static, Response>> {
        let response = self.unbounded_response(method, params)?;
        Some(match Arc::clone(&self.calls).try_acquire_owned() {
            Ok(permit) => Box::pin(async move {
                let _permit = permit;
                response.await
            }),
            Err(_) => Box::pin(std::future::ready(Err(too_many_calls(self.max_calls)))),
        })
    }

    fn unbounded_response(&self, method: &str, params: &Value) -> Option<BoxFuture<'static, Response>> {
        #[cfg(all(feature = "terminals", unix))]
        if let Some(action) = method.strip_prefix("terminal/") {
            return self
                .terminals
                .as_ref()
                .and_then(|terminals| terminal_response(terminals, action, params));
        }
        let files = Arc::clone(self.files.as_ref()?);
        match method {
            "fs/read_text_file" if files.access().reads() => {
                let request = read_request(params);
                Some(Box::pin(async move {
                    let text = files.read(request?).await.map_err(|error| error.to_rpc())?;
                    Ok(json!({"content": text}))
                }))
            }
            "fs/write_text_file" if files.access().writes() => {
                let request = write_request(params);
                Some(Box::pin(async move {
                    files.write(request?).await.map_err(|error| error.to_rpc())?;
                    Ok(json!({}))
                }))
            }
            _ => None,
        }
    }
}

impl RequestHandler for AgentTools {
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        match self.respond(request.method(), request.params()) {
            Some(response) => response,
            None => request.forward(),
        }
    }

    fn capabilities(&self, agent: &str) -> Map<String, Value> {
        let offers = self.capabilities_with(|allowed| match &self.advertised {
            Some(choose) => choose(agent),
            None => allowed.advertised_to(agent),
        });
        offers.as_object().cloned().unwrap_or_default()
    }

    /// Releases a terminal whose id never reached the agent. Otherwise it would run until the session ends.
    fn undelivered(&self, method: &str, session_id: Option<&str>, result: &Value) -> BoxFuture<'static, ()> {
        #[cfg(all(feature = "terminals", unix))]
        if let (Some(terminals), Some(session), "terminal/create") = (&self.terminals, session_id, method)
            && let Ok(id) = text(result, "terminalId")
        {
            let (terminals, session) = (terminals.clone(), session.to_owned());
            return Box::pin(async move {
                // An error means that the session has ended meanwhile.
                let _ = terminals.release(&session, &id).await;
            });
        }
        let _ = (method, session_id, result);
        Box::pin(std::future::ready(()))
    }

    /// Kills the commands of a session.
    fn session_ended(&self, session_id: &str) -> BoxFuture<'static, ()> {
        #[cfg(all(feature = "terminals", unix))]
        if let Some(terminals) = self.terminals.clone() {
            let session = session_id.to_owned();
            return Box::pin(async move { terminals.release_session(&session).await });
        }
        let _ = session_id;
        Box::pin(std::future::ready(()))
    }

    /// Kills all commands, waits for their end, and rejects new ones.
    fn connection_ended(&self) -> BoxFuture<'static, ()> {
        #[cfg(all(feature = "terminals", unix))]
        if let Some(terminals) = self.terminals.clone() {
            return Box::pin(async move { terminals.shut().await });
        }
        Box::pin(std::future::ready(()))
    }

    /// Kills all commands before it returns, and rejects new ones.
    fn close(&self) {
        #[cfg(all(feature = "terminals", unix))]
        if let Some(terminals) = &self.terminals {
            terminals.close();
        }
    }
}

impl Default for AgentTools {
    fn default() -> Self {
        Self {
            files: None,
            #[cfg(all(feature = "terminals", unix))]
            terminals: None,
            advertised: None,
            max_calls: MAX_CALLS,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
        }
    }
}

impl fmt::Debug for AgentTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentTools")
            .field("capabilities", &self.capabilities().to_string())
            .field("max_calls", &self.max_calls)
            .finish_non_exhaustive()
    }
}

fn read_request(params: &Value) -> Result<ReadText, RpcError> {
    let range = LineRange::new(number(params, "line")?, number(params, "limit")?);
    let path = text(params, "path")?.into();
    Ok(ReadText { session_id: text(params, "sessionId").ok(), path, range, raw: params.clone() })
}

fn write_request(params: &Value) -> Result<WriteText, RpcError> {
    let (path, content) = (text(params, "path")?.into(), text(params, "content")?);
    let members = params.as_object().into_iter().flatten().filter(|(name, _)| *name != "content");
    let raw = Value::Object(members.map(|(name, value)| (name.clone(), value.clone())).collect());
    Ok(WriteText { session_id: text(params, "sessionId").ok(), path, content, raw })
}

#[cfg(all(feature = "terminals", unix))]
fn terminal_response(
    terminals: &Terminals,
    action: &str,
    params: &Value,
) -> Option<BoxFuture<'static, Response>> {
    let session = text(params, "sessionId");
    if action == "create" {
        // Reserved now: the end of the session cancels the reservation, whenever the future is first polled.
        let reserved = session.map(|session| terminals.reserve(&session));
        let command = command_request(params);
        return Some(Box::pin(async move {
            let (reserved, command) = (reserved?, command?);
            let id = reserved
                .and_then(|reservation| reservation.start(&command))
                .map_err(|error| error.to_rpc())?;
            Ok(json!({"terminalId": id}))
        }));
    }
    let terminals = terminals.clone();
    let (id, limit) = (text(params, "terminalId"), number(params, "outputByteLimit"));
    Some(match action {
        "output" => Box::pin(async move {
            let output = terminals.output(&session?, &id?, limit?).map_err(|error| error.to_rpc())?;
            let status = output.exit.as_ref().map(status);
            let code = output.exit.as_ref().and_then(|exit| exit.code);
            Ok(json!({
                "output": output.text, "truncated": output.truncated, "exitStatus": status, "exitCode": code,
            }))
        }),
        "wait_for_exit" => Box::pin(async move {
            let exit = terminals.wait_for_exit(&session?, &id?).await.map_err(|error| error.to_rpc())?;
            Ok(json!({"exitCode": exit.code, "signal": exit.signal, "exitStatus": status(&exit)}))
        }),
        "kill" => Box::pin(async move {
            terminals.kill(&session?, &id?).await.map_err(|error| error.to_rpc())?;
            Ok(json!({}))
        }),
        "release" => Box::pin(async move {
            terminals.release(&session?, &id?).await.map_err(|error| error.to_rpc())?;
            Ok(json!({}))
        }),
        _ => return None,
    })
}

#[cfg(all(feature = "terminals", unix))]
fn status(exit: &TerminalExit) -> Value {
    json!({"exitCode": exit.code, "signal": exit.signal})
}

#[cfg(all(feature = "terminals", unix))]
fn command_request(params: &Value) -> Result<TerminalCommand, RpcError> {
    let mut command = TerminalCommand::new(text(params, "command")?);
    for arg in list(params, "args")? {
        let arg = arg.as_str().ok_or_else(|| invalid("args"))?;
        command.args.push(arg.to_owned());
    }
    for variable in list(params, "env")? {
        command.env.push((text(variable, "name")?, text(variable, "value")?));
    }
    command.cwd = match params.get("cwd") {
        None | Some(Value::Null) => None,
        Some(_) => Some(text(params, "cwd")?.into()),
    };
    command.output_limit = number(params, "outputByteLimit")?;
    command.raw = params.clone();
    Ok(command)
}

fn text(params: &Value, name: &str) -> Result<String, RpcError> {
    params.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| invalid(name))
}

fn number(params: &Value, name: &str) -> Result<Option<u64>, RpcError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| invalid(name)),
    }
}

#[cfg(all(feature = "terminals", unix))]
fn list<'a>(params: &'a Value, name: &str) -> Result<&'a [Value], RpcError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(&[]),
        Some(value) => value.as_array().map(Vec::as_slice).ok_or_else(|| invalid(name)),
    }
}

fn invalid(name: &str) -> RpcError {
    RpcError::new(RpcError::INVALID_PARAMS, format!("parameter `{name}` is missing or invalid"))
        .with_data(json!({"reason": "parameter", "parameter": name}))
}

fn too_many_calls(limit: usize) -> RpcError {
    RpcError::new(RpcError::INTERNAL_ERROR, format!("{limit} requests are already being served"))
        .with_data(json!({"reason": "too_many_calls", "limit": limit}))
}
