use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use super::gate::Gate;
use super::socket::{Socket, Wire};
use super::tasks::Tasks;
use crate::control::Lifeline;

/// How many connections may wait to be accepted. Beyond that the kernel would reset connections, which would
/// be an unintended fault.
const BACKLOG: u32 = 4096;

/// Listens on `address`, even if connections of an earlier listener still exist.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until its task ends, and serves HTTP/1.1 and HTTP/2 on each.
pub(crate) async fn accept(listener: TcpListener, gate: Gate, tasks: Tasks) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = serve(stream, gate.clone(), tasks.clone());
                tasks.spawn(connection);
            }
            Err(error) => {
                // Out of file descriptors, or an aborted handshake. Neither ends the server.
                tracing::warn!(%error, "accept failed");
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn serve(stream: TcpStream, gate: Gate, tasks: Tasks) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "failed to set TCP_NODELAY");
    }
    let socket = Arc::new(Socket::default());
    let wire = Wire::new(stream, Arc::clone(&socket));
    let (held, lifeline) = watch::channel(());
    let service = {
        let socket = Arc::clone(&socket);
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Lifeline(lifeline.clone()));
            let response = gate.clone().serve(request, Arc::clone(&socket));
            async move { Ok::<_, Infallible>(response.await) }
        })
    };
    let builder = auto::Builder::new(OwnedExecutor(tasks));
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(wire), service);
    tokio::select! {
        served = connection => {
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = socket.ended() => return,
    }
    // Another task serves an upgraded connection. It ends with this one.
    tokio::select! {
        () = held.closed() => {}
        () = socket.ended() => {}
    }
}

/// Runs the tasks of an HTTP/2 connection as tasks of the server.
#[derive(Debug, Clone)]
struct OwnedExecutor(Tasks);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for OwnedExecutor {
    fn execute(&self, future: F) {
        self.0.spawn(async move {
            future.await;
        });
    }
}
