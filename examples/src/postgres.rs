//! A PostgreSQL server for tests and examples: the one at `DATABASE_URL`, or a temporary one.

#![allow(clippy::expect_used, reason = "tests and examples cannot run without a database")]

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Connection as _, Executor as _};
use tempfile::TempDir;

/// How long a server may take to become ready.
const READY: Duration = Duration::from_secs(60);
/// Users that the server can run as if the tests run as root. PostgreSQL refuses to run as root.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A database server.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    started: Option<Started>,
}

/// A temporary server. Dropping it stops the server and removes its files.
#[derive(Debug)]
struct Started {
    /// Guards the process, which changes on a restart. Held while the process is stopped or started.
    server: Mutex<Child>,
    directory: TempDir,
    programs: PathBuf,
    port: u16,
    settings: Vec<String>,
}

impl Started {
    fn launch(programs: &Path, directory: &Path, port: u16, settings: &[String]) -> io::Result<Child> {
        let mut server = run_as(user(), &programs.join("postgres"));
        server.arg("-D").arg(directory.join("data"));
        server.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""]);
        for setting in ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=100"]
        {
            server.args(["-c", setting]);
        }
        for setting in settings {
            server.args(["-c", setting]);
        }
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log"))?;
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()
    }

    /// Kills the server with all its processes, and returns their ids.
    fn kill(&self) -> io::Result<Vec<String>> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        let children = children_of(server.id());
        server.kill()?;
        server.wait()?;
        // They would exit on their own later, but block a new server until then.
        for child in &children {
            let _ = Command::new("kill").args(["-KILL", child]).stderr(Stdio::null()).status();
        }
        Ok(children)
    }

    /// Starts a killed server again, on the same port.
    fn restart(&self) -> io::Result<()> {
        let server = Self::launch(&self.programs, self.directory.path(), self.port, &self.settings)?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let server = self.server.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SIGQUIT stops all its processes immediately. SIGKILL would leave child processes behind.
        let sent = Command::new("kill").args(["-QUIT", &server.id().to_string()]).status();
        if !sent.is_ok_and(|status| status.success()) {
            let _ = server.kill();
        }
        let _ = server.wait();
    }
}

/// The server that concurrent tests share. It stops with the last of them.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

impl Cluster {
    /// Returns the server at `DATABASE_URL`, or a temporary one that concurrent callers share.
    ///
    /// If neither is available, prints the reason and returns `None`, unless `CI` is set.
    ///
    /// # Panics
    /// If the server fails to start although its programs are installed, and if they are missing while `CI`
    /// is set.
    pub async fn find() -> Option<Arc<Self>> {
        let found = tokio::task::spawn_blocking(|| {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cluster) = shared.upgrade() {
                return Some(cluster);
            }
            let cluster = Arc::new(Self::of_environment()?);
            *shared = Arc::downgrade(&cluster);
            Some(cluster)
        });
        let cluster = found.await.expect("finding a database does not panic");
        let cluster = or_missing(cluster, "DATABASE_URL is not set and there is no initdb", is_ci())?;
        cluster.ready().await;
        Some(cluster)
    }

    fn of_environment() -> Option<Self> {
        if let Ok(url) = std::env::var("DATABASE_URL") {
            return Some(Self { url, started: None });
        }
        let programs = programs()?;
        Some(Self::start(&programs, &[]).expect("a PostgreSQL server can be started"))
    }

    /// Starts a separate temporary server with these settings, regardless of `DATABASE_URL`.
    ///
    /// If its programs are not installed, prints the reason and returns `None`, unless `CI` is set.
    ///
    /// # Panics
    /// If the server fails to start, and if its programs are missing while `CI` is set.
    pub async fn start_with(files: &[(&str, &str)], settings: &[&str]) -> Option<Self> {
        let programs = or_missing(programs(), "there is no initdb", is_ci())?;
        let files: Vec<(String, String)> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let started = tokio::task::spawn_blocking(move || Self::start_in(&programs, &files, &settings));
        let cluster = started.await.expect("starting does not panic").expect("a server can be started");
        cluster.ready().await;
        Some(cluster)
    }

    fn start(programs: &Path, settings: &[String]) -> io::Result<Self> {
        Self::start_in(programs, &[], settings)
    }

    fn start_in(programs: &Path, files: &[(String, String)], settings: &[String]) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("postgres-").tempdir()?;
        let data = directory.path().join("data");
        std::fs::create_dir(&data)?;
        let user = user();
        if let Some(user) = user {
            let owner = Command::new("chown").args(["-R", user]).arg(directory.path()).status()?;
            assert!(owner.success(), "chown {user}");
        }
        let made = run_as(user, &programs.join("initdb"))
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D"])
            .arg(&data)
            .output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        for (name, text) in files {
            let file = data.join(name);
            std::fs::write(&file, text)?;
            if let Some(user) = user {
                let owned = Command::new("chown").arg(user).arg(&file).status()?;
                assert!(owned.success(), "chown {user}");
            }
            let private = Command::new("chmod").arg("600").arg(&file).status()?;
            assert!(private.success(), "chmod");
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Started::launch(programs, directory.path(), port, settings)?;
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let (server, programs, settings) = (Mutex::new(server), programs.to_owned(), settings.to_owned());
        Ok(Self { url, started: Some(Started { server, directory, programs, port, settings }) })
    }

    /// Waits until the server accepts connections.
    async fn ready(&self) {
        let ready = async {
            while let Err(error) = PgConnection::connect(&self.url).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
                drop(error);
            }
        };
        if tokio::time::timeout(READY, ready).await.is_err() {
            let log = self.started.as_ref().map(|started| started.directory.path().join("log"));
            let log = log.and_then(|log| std::fs::read_to_string(log).ok()).unwrap_or_default();
            panic!("the PostgreSQL server is not ready:\n{log}");
        }
    }

    /// Kills all processes of a temporary server with SIGKILL, starts it again, and waits until it is ready.
    ///
    /// # Panics
    /// If the server was not started here, or fails to start.
    pub async fn restart_killed(&self) {
        let started = self.started.as_ref().expect("only a temporary server is killed");
        let children = started.kill().expect("a server can be killed");
        while children.iter().any(|child| Path::new("/proc").join(child).exists()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        started.restart().expect("a killed server can be restarted");
        self.ready().await;
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the data directory of a temporary server.
    #[must_use]
    pub fn data(&self) -> Option<PathBuf> {
        self.started.as_ref().map(|started| started.directory.path().join("data"))
    }

    /// Creates a separate schema for one test.
    ///
    /// # Panics
    /// If the schema cannot be created.
    pub async fn schema(self: &Arc<Self>) -> Schema {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        let mut connection = PgConnection::connect(&self.url).await.expect("the server is reachable");
        let create = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}");
        connection.execute(sqlx::raw_sql(&create)).await.expect("a schema can be created");
        let mark = if self.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{mark}options=-csearch_path%3D{name}", self.url);
        Schema { cluster: Arc::clone(self), name, url }
    }
}

/// A separate schema in the database.
#[derive(Debug)]
pub struct Schema {
    cluster: Arc<Cluster>,
    name: String,
    /// The URL that selects the schema.
    pub url: String,
}

impl Schema {
    /// Opens a connection pool, to inspect the tables of the store.
    ///
    /// # Panics
    /// If the server is unreachable.
    pub async fn pool(&self) -> PgPool {
        PgPool::connect(&self.url).await.expect("the server is reachable")
    }

    /// Removes the schema and everything in it.
    ///
    /// # Panics
    /// If the server is unreachable.
    pub async fn remove(self) {
        let mut connection =
            PgConnection::connect(self.cluster.url()).await.expect("the server is reachable");
        let drop = format!("DROP SCHEMA {} CASCADE", self.name);
        connection.execute(sqlx::raw_sql(&drop)).await.expect("a schema can be removed");
    }
}

/// Whether a test that cannot run must fail.
fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Returns `found`. If it is `None`, prints the reason, or panics if it is needed.
fn or_missing<T>(found: Option<T>, why: &str, needed: bool) -> Option<T> {
    if found.is_none() {
        assert!(!needed, "no PostgreSQL: {why}");
        eprintln!("NOT TESTED: no PostgreSQL: {why}");
    }
    found
}

/// Returns the directory with the server's programs, from `PATH` or from the usual package locations.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|directory| directory.join("initdb"));
    let packages = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = packages.map(|version| version.path().join("bin/initdb"));
    // A link in `PATH` may point to the directory of the other programs.
    let found = on_path.chain(packaged).filter_map(|initdb| initdb.canonicalize().ok());
    found
        .filter_map(|initdb| initdb.parent().map(Path::to_owned))
        .find(|directory| directory.join("postgres").exists())
}

/// Returns the user to run as, if it must be another one.
fn user() -> Option<&'static str> {
    let own = Command::new("id").arg("-u").output().ok()?;
    if own.stdout.trim_ascii() != b"0" {
        return None;
    }
    USERS.into_iter().find(|user| {
        let known = Command::new("id").arg(user).stdout(Stdio::null()).stderr(Stdio::null()).status();
        known.is_ok_and(|status| status.success())
    })
}

/// Returns the ids of the processes that this process started.
fn children_of(parent: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().into_string().ok());
    let is_child = |id: &String| {
        let stat = std::fs::read_to_string(Path::new("/proc").join(id).join("stat")).unwrap_or_default();
        // The name in parentheses may contain anything; the state and the parent follow it.
        let parent_of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parent_of == Some(parent.to_string().as_str())
    };
    ids.filter(is_child).collect()
}

/// Creates a command for a program, as another user if necessary. The tool that changes the user is replaced
/// by the program, so the program has the process id of the command.
fn run_as(user: Option<&str>, program: &Path) -> Command {
    let mut command = match user {
        Some(user) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]).arg(program);
            if user == "nobody" {
                command = Command::new("setpriv");
                command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]).arg(program);
            }
            command
        }
        None => Command::new(program),
    };
    command.current_dir("/").env("LC_ALL", "C");
    command
}

#[cfg(test)]
mod tests {
    use super::or_missing;

    #[test]
    fn a_missing_database_is_reported_and_an_existing_one_is_returned() {
        assert_eq!(or_missing(None::<u8>, "nothing", false), None);
        assert_eq!(or_missing(Some(1), "nothing", true), Some(1));
    }

    #[test]
    #[should_panic(expected = "no PostgreSQL: nothing")]
    fn a_missing_database_panics_where_it_is_needed() {
        or_missing(None::<u8>, "nothing", true);
    }
}
