//! Calls over a connection, and what their failures mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use acp_http_client as wire;
use serde_json::Value;
use tokio::sync::watch;

use super::connection::Connection;
use super::hub::PendingCall;
use super::names::{
    AUTHENTICATE, EXTENDED_LIST, FORK, LIST, LOAD, NEW, PROMPT, RESUME, is_answered_by_agent,
};
use super::reading::id_text;
use super::stream::{LogRecord, Settlement};
use crate::client::event::Origin;
use crate::client::limits::BodyKind;
use crate::client::login::LoginRequired;
use crate::convert::metadata::{META, NAMESPACE};
use crate::error::AgentEnded;
use crate::error::{LostReason, RpcError};
use crate::termination::TerminationReport;
use crate::update::Missed;
use crate::{Error, ServerKind, TerminationInfo};

/// Whether a call needs its session to be alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// The agent responds, so the call fails when the session ends.
    Session,
    /// The server responds, or the call opens the session.
    Nothing,
}

/// Counts a call while it is pending.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Connection {
    /// Makes a call that every server supports and that needs no session.
    pub(super) async fn call(&self, method: &str, params: Value) -> Result<Value, Error> {
        self.call_with(method, params, wire::RequestOptions::new()).await
    }

    pub(super) async fn call_with(
        &self,
        method: &str,
        params: Value,
        options: wire::RequestOptions,
    ) -> Result<Value, Error> {
        self.check()?;
        let about = params.get("sessionId").and_then(Value::as_str);
        let _pending = self.pending_call(method, about);
        let request = || self.wire.request_raw(method, &params).options(options.clone());
        let agent = agent_in(&params);
        let call = self.logged_in(method, agent, || repeated(|| self.finish(method, None, request())));
        self.setting_mode(method, &params, call).await
    }

    /// Makes a call. If the agent did not run it because it requires a login, the client logs in and makes it again, once.
    async fn logged_in<F>(
        &self,
        method: &str,
        agent: Option<&str>,
        call: impl Fn() -> F,
    ) -> Result<Value, Error>
    where
        F: Future<Output = Result<Value, Error>>,
    {
        match call().await {
            Err(Error::LoginRequired(mut login)) if self.is_of_another_agent(agent) => {
                login.methods.clear();
                Err(Error::LoginRequired(login))
            }
            Err(Error::LoginRequired(_))
                if matches!(method, NEW | LOAD | RESUME | FORK | LIST)
                    && self.log_in_if_required(agent).await? =>
            {
                call().await
            }
            result => result,
        }
    }

    /// Calls `authenticate`, which never requires another login.
    pub(super) async fn authenticate(&self, params: &Value) -> Result<Value, Error> {
        self.check()?;
        repeated(|| self.finish(AUTHENTICATE, None, self.wire.request_raw(AUTHENTICATE, params))).await
    }

    /// Counts a call about a session as pending: agent requests of the session are addressed to this client meanwhile.
    fn pending_call(&self, method: &str, session: Option<&str>) -> Option<PendingCall> {
        session.filter(|_| is_answered_by_agent(method)).map(|session| self.hub.pending_call(session))
    }

    /// Makes a call that not every server supports. A method that is known to be missing is not sent.
    pub(super) async fn optional(
        &self,
        method: &str,
        params: Value,
        session: Option<&str>,
        needs: Needs,
    ) -> Result<Value, Error> {
        self.optional_with(method, params, session, needs, wire::RequestOptions::new()).await
    }

    pub(super) async fn optional_with(
        &self,
        method: &str,
        params: Value,
        session: Option<&str>,
        needs: Needs,
        options: wire::RequestOptions,
    ) -> Result<Value, Error> {
        let known = session.and_then(|session| self.hub.agent_of(session));
        let named = agent_in(&params).or(known.as_deref());
        let agent = named.unwrap_or_else(|| self.agent());
        if self.shared.learned.get(agent, method) == Some(false) {
            return Err(Error::Unsupported { method: method.to_owned() });
        }
        let result = match (session, needs) {
            (Some(session), Needs::Session) => {
                let call = self.session_call(method, &params, session, options);
                self.setting_mode(method, &params, call).await
            }
            _ => {
                self.check()?;
                let request = || self.wire.request_raw(method, &params).options(options.clone());
                self.logged_in(method, named, || repeated(|| self.finish(method, session, request()))).await
            }
        };
        match result {
            Err(Error::Rpc { error, .. }) if error.code == RpcError::METHOD_NOT_FOUND => {
                self.shared.learned.note(agent, method, false);
                Err(Error::Unsupported { method: method.to_owned() })
            }
            Ok(answer) => {
                self.shared.learned.note(agent, method, true);
                Ok(answer)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a call that fails when its session ends.
    pub(super) async fn session_call(
        &self,
        method: &str,
        params: &Value,
        session: &str,
        options: wire::RequestOptions,
    ) -> Result<Value, Error> {
        let request = || self.wire.request_raw(method, params).options(options.clone());
        repeated(|| self.session_request(method, session, request())).await
    }

    /// Sends a request that fails when its session ends.
    pub(super) async fn session_request(
        &self,
        method: &str,
        session: &str,
        request: wire::Request<wire::Json>,
    ) -> Result<Value, Error> {
        self.check()?;
        if let Some(info) = self.hub.ended(session) {
            return Err(Error::ended(Some(session), info, false));
        }
        let mut end = self.hub.watch_end(session);
        let mut call = std::pin::pin!(self.finish(method, Some(session), request));
        let result = tokio::select! {
            // A response takes precedence over an end that arrives with it.
            biased;
            result = &mut call => result,
            info = ended(&mut end) => match self.shared.ended() {
                None => return Err(Error::ended(Some(session), info, true)),
                // The end of the agent fails the call too, as soon as its details are known.
                Some(_) => call.await.map_err(|error| match (error.termination(), self.shared.ended()) {
                    (None, Some(info)) => Error::ended(None, info, true),
                    _ => error,
                }),
            },
        };
        if result.is_ok() {
            self.hub.confirm(session);
        }
        result
    }

    async fn finish(
        &self,
        method: &str,
        session: Option<&str>,
        request: wire::Request<wire::Json>,
    ) -> Result<Value, Error> {
        // It counts until its failure is explained, because the reports of an agent's end are merged from such
        // failures.
        let _in_flight = InFlight::new(&self.shared.in_flight);
        let pending = self.pending_call(method, session);
        let request_id = request.id();
        let response = request.with_order().await;
        // A prompt is pending for longer, and runs the barrier itself.
        if self.kind() == ServerKind::Shared
            && method != PROMPT
            && pending.is_some()
            && matches!(response, Ok(_) | Err(wire::Error::Rpc { .. }))
        {
            // The agent requests before the response are addressed to this client.
            self.barrier().await;
        }
        let result = match response {
            Ok((response, order)) => {
                if let Some(session) = session.filter(|_| matches!(method, PROMPT | LOAD)) {
                    self.check_order(session, order, request_id.as_ref()).await;
                }
                self.decode(method, &response)
            }
            Err(error) => Err(self.explain(method, session, error).await),
        };
        if let (Some(session), Some(id)) = (session.filter(|_| method != PROMPT), request_id)
            && self.hub.has_logs()
        {
            // Events that arrived before the response precede it in the log.
            self.barrier().await;
            let (request_id, method, session_id) = (id_text(&id), method.to_owned(), session.to_owned());
            let settlement = Settlement { request_id, method, session_id, result: result.clone() };
            self.hub.log(LogRecord::Settled(settlement), None, Origin::Live);
        }
        result
    }

    /// Reports that updates of a turn or a history may be missing, if the order of the response was not verified.
    async fn check_order(&self, session: &str, order: wire::Order, request: Option<&wire::MessageId>) {
        if order == wire::Order::Verified {
            return;
        }
        if self.kind() == ServerKind::ConnectionId {
            // Early servers never verify it: there, only a stream that was lost may have lost updates.
            self.barrier().await;
            if !self.hub.is_interrupted(session) {
                return;
            }
        }
        self.hub.miss_in(session, Missed::Unverified);
        request.map(id_text).into_iter().for_each(|id| self.hub.unordered(&id));
    }

    /// Decodes a response within the limits of its kind.
    fn decode(&self, method: &str, response: &wire::Json) -> Result<Value, Error> {
        let kind = match method {
            LIST | EXTENDED_LIST => BodyKind::SessionPage,
            _ => BodyKind::Message,
        };
        self.options.limits.check(kind, method, response.as_bytes())?;
        response.parse().map_err(|source| Error::Decode {
            what: method.to_owned(),
            raw: response.as_str().to_owned(),
            source: Arc::new(crate::convert::text::safe_error(source)),
        })
    }

    /// Sends a notification.
    pub(super) async fn notify(&self, method: &str, params: &Value) -> Result<(), Error> {
        self.check()?;
        match self.wire.notify(method, params).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.explain(method, None, error).await),
        }
    }

    /// Cancels the turn of a session. First responds to its open agent requests as cancelled, unless they are addressed
    /// to other clients.
    pub(super) async fn cancel(&self, session: &str) -> Result<(), Error> {
        self.hub.cancelling_turn(session);
        // Requests to other clients in this session are left to them, including those that are not routed yet.
        self.shared.unclaimed.release(session);
        let notification = wire::schema::v1::CancelNotification::new(session.to_owned());
        let (ownership, id) = (self.ownership(), session.to_owned());
        match self.wire.control().cancel_turn_if(notification, move || ownership.has(Some(&id))).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.explain("session/cancel", Some(session), error).await),
        }
    }

    /// Converts an error of the connection; many of them mean the end of the agent.
    pub(super) async fn explain(&self, method: &str, session: Option<&str>, error: wire::Error) -> Error {
        if let Some(report) = TerminationReport::from_wire_error(&error) {
            if matches!(error, wire::Error::Rpc { .. }) {
                return self.ended_with_response(method, session, (report, true), error).await;
            }
            // A write that failed did not reach the agent.
            let sent = !report.is_failed_write();
            if !self.shared.exit_notices_trusted() {
                // The endpoint has several agents, and others may run.
                return self.ended_with_response(method, session, (report, sent), error).await;
            }
            let info = self.report(report).await;
            let response = Some(Arc::new(Error::from_wire(error)));
            let end = AgentEnded { session_id: None, info, sent, connection_ended: true, response };
            return Error::AgentEnded(Box::new(end));
        }
        match Error::from_wire(error) {
            Error::Disconnected { .. } => Error::Disconnected { what: method.to_owned() },
            Error::Http(http) if self.kind() == ServerKind::PerAgent && is_forgotten(&http.body) => {
                let source = Some(Arc::new(Error::Http(http)));
                let error = Error::ConnectionEnded { reason: LostReason::ServerGone, sent: false, source };
                self.lose(&error);
                error
            }
            Error::Rpc { error, status, executed } => {
                let error = Error::Rpc { error, status, executed };
                match error.is_login_required() && method != AUTHENTICATE {
                    true => self.login_required(session, error),
                    false => error,
                }
            }
            Error::Timeout(mut timeout) => {
                timeout.agent_output = self.shared.output();
                if matches!(method, NEW | FORK) {
                    timeout.unclaimed_requests = self.shared.unclaimed.seen_within(timeout.elapsed);
                }
                Error::Timeout(timeout)
            }
            error => error,
        }
    }

    fn login_required(&self, session: Option<&str>, error: Error) -> Error {
        let Some(rpc) = error.rpc_error().cloned() else { return error };
        let agent = session.and_then(|session| self.hub.agent_of(session));
        // The methods of the other agents of an endpoint are not known.
        let own = self.capabilities().filter(|_| !self.is_of_another_agent(agent.as_deref()));
        let methods = own.map(|can| can.login_methods.clone()).unwrap_or_default();
        Error::LoginRequired(Box::new(LoginRequired { methods, error: rpc, executed: false }))
    }

    /// The response reports that the session or the agent has ended.
    async fn ended_with_response(
        &self,
        method: &str,
        session: Option<&str>,
        (report, sent): (TerminationReport, bool),
        error: wire::Error,
    ) -> Error {
        let info = match session {
            // The notification arrived before the response and takes precedence.
            Some(session) => {
                self.barrier().await;
                match method {
                    LOAD | RESUME => self.hub.end_again(session, report),
                    _ => self.hub.end_session(session, report),
                }
            }
            None => report.into_info(),
        };
        let session_id = session.map(str::to_owned);
        let response = Some(Arc::new(Error::from_wire(error)));
        let end = AgentEnded { session_id, info, sent, connection_ended: false, response };
        Error::AgentEnded(Box::new(end))
    }
}

/// Waits for the end of a session.
pub(super) async fn ended(end: &mut watch::Receiver<Option<TerminationInfo>>) -> TerminationInfo {
    match end.wait_for(Option::is_some).await.map(|info| info.clone()) {
        Ok(Some(info)) => info,
        // The client was dropped, and everything ends.
        _ => std::future::pending().await,
    }
}

/// Returns the agent that the parameters of a call name.
fn agent_in(params: &Value) -> Option<&str> {
    let named = params.get("agent").or_else(|| params.get(META)?.get(NAMESPACE)?.get("agent"));
    named?.as_str()
}

/// Whether a released server no longer has the agent: it requires the name of an agent to start one.
fn is_forgotten(body: &str) -> bool {
    body.contains("missing required 'agent' query parameter")
}

/// Sends a request, and once more if it certainly did not reach the server: it may have been restarted.
async fn repeated<F>(send: impl Fn() -> F) -> Result<Value, Error>
where
    F: Future<Output = Result<Value, Error>>,
{
    match send().await {
        Err(Error::Unreachable(_)) => send().await,
        result => result,
    }
}
