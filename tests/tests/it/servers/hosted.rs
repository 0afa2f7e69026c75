//! A server in this process, on its own runtime, so that it can be killed like a process.

use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use sdk_tests::LIMIT;
use tokio::runtime::{Builder, Runtime};

/// A server on 127.0.0.1 that keeps its port over restarts.
#[derive(Debug)]
pub(crate) struct Hosted {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Hosted {
    /// Runs `serve` with a listener on a free port.
    pub(crate) fn start<F, S>(serve: S) -> Self
    where
        S: FnOnce(TcpListener) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let mut hosted = Self { address, runtime: None };
        hosted.run(listener, serve);
        hosted
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends everything at once, like SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Runs `serve` with a new listener on the same port.
    pub(crate) async fn restart<F, S>(&mut self, serve: S)
    where
        S: FnOnce(TcpListener) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        self.kill();
        let begun = Instant::now();
        let listener = loop {
            match TcpListener::bind(self.address) {
                Ok(listener) => break listener,
                // The old runtime drops its tasks, and with them the listener, in the background.
                Err(error) => assert!(begun.elapsed() < LIMIT, "the port is not free again: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        self.run(listener, serve);
    }

    fn run<F, S>(&mut self, listener: TcpListener, serve: S)
    where
        S: FnOnce(TcpListener) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        listener.set_nonblocking(true).expect("a socket for a runtime");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.spawn(serve(listener));
        self.runtime = Some(runtime);
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.kill();
    }
}
