//! Which processes hold a listening socket.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
#[cfg(feature = "providers")]
use std::net::SocketAddrV4;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::membership::Membership;
use super::sweep::members;
use super::table::{Entry, Look};
use super::{Listener, Owner};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// A listening socket.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    user: u32,
    inode: u64,
}

/// An open file of a process that is a listening socket.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    process: Entry,
    file: PathBuf,
    inode: u64,
}

impl Holder {
    /// Whether the process still has the socket open.
    fn holds(&self) -> bool {
        self.process.is_alive() && inode(&self.file) == Some(self.inode)
    }
}

/// Whether the owner holds every socket that accepts connections to this loopback port, and by which files.
///
/// The table of sockets is read before the members' open files, because a listening socket always has an
/// owner. Another user can copy the marks of members, but not the user id of a socket or a process. Both must
/// be this user's.
pub(super) fn listener(
    membership: &Membership,
    owner: Owner,
    port: u16,
) -> io::Result<(Listener, Vec<Holder>)> {
    let sockets = listening(port)?;
    if sockets.is_empty() {
        return Ok((Listener::None, Vec::new()));
    }
    let user = geteuid().as_raw();
    let is_own = |entry: &Entry| {
        fs::metadata(format!("/proc/{}", entry.pid.as_raw_pid())).is_ok_and(|process| process.uid() == user)
    };
    let processes: Vec<_> = match owner {
        Owner::Member => members(&[membership], Look::new().entries).into_iter().filter(is_own).collect(),
        #[cfg(feature = "providers")]
        Owner::ThisProcess => Entry::read(rustix::process::getpid()).into_iter().collect(),
    };
    let is_listening = |holder: &Holder| sockets.iter().any(|socket| socket.inode == holder.inode);
    let holders: Vec<_> = processes.into_iter().flat_map(files).filter(is_listening).collect();
    let is_held =
        |socket: &Socket| socket.user == user && holders.iter().any(|holder| holder.inode == socket.inode);
    Ok(match sockets.iter().all(is_held) {
        true => (Listener::Owner, holders),
        false => (Listener::Foreign, Vec::new()),
    })
}

/// Whether the sockets that these processes held are still held by them.
///
/// While they are, no other process can listen on the port. This avoids reading the tables of sockets, which takes
/// milliseconds.
pub(super) fn are_held(known: &[Holder]) -> bool {
    let held: HashSet<u64> = known.iter().filter(|one| one.holds()).map(|one| one.inode).collect();
    !known.is_empty() && known.iter().all(|one| held.contains(&one.inode))
}

/// Whether the socket at the other side of a connection belongs to this user.
#[cfg(feature = "providers")]
pub(super) fn is_client_own(client: SocketAddrV4, server: SocketAddrV4) -> io::Result<bool> {
    let is_it = |row: &Row<'_>| row.is_between(client, server);
    let users: Vec<u32> =
        tables()?.iter().flat_map(|table| rows(table).filter(is_it).map(|row| row.user)).collect();
    Ok(!users.is_empty() && users.iter().all(|user| *user == geteuid().as_raw()))
}

/// Returns the sockets that listen on a port of the IPv4 loopback address.
fn listening(port: u16) -> io::Result<Vec<Socket>> {
    Ok(tables()?.iter().flat_map(|table| parse(table, port)).collect())
}

/// The tables of the sockets of IPv4 and IPv6. An IPv6 socket also accepts and makes IPv4 connections.
fn tables() -> io::Result<Vec<String>> {
    let mut tables = vec![fs::read_to_string("/proc/net/tcp")?];
    // A kernel without IPv6 has no such table.
    match fs::read_to_string("/proc/net/tcp6") {
        Ok(table) => tables.push(table),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(tables)
}

/// One row of `/proc/net/tcp` or `/proc/net/tcp6`.
struct Row<'a> {
    local: (&'a str, u16),
    #[cfg(feature = "providers")]
    remote: (&'a str, u16),
    state: &'a str,
    user: u32,
    inode: u64,
}

#[cfg(feature = "providers")]
impl Row<'_> {
    fn is_between(&self, local: SocketAddrV4, remote: SocketAddrV4) -> bool {
        let is = |(address, port): (&str, u16), other: SocketAddrV4| {
            port == other.port() && forms(*other.ip()).iter().any(|form| form == address)
        };
        is(self.local, local) && is(self.remote, remote)
    }
}

fn rows(table: &str) -> impl Iterator<Item = Row<'_>> {
    fn address(field: &str) -> Option<(&str, u16)> {
        let (address, port) = field.rsplit_once(':')?;
        Some((address, u16::from_str_radix(port, 16).ok()?))
    }
    table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Some(Row {
            local: address(fields.get(1)?)?,
            #[cfg(feature = "providers")]
            remote: address(fields.get(2)?)?,
            state: fields.get(3)?,
            user: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    })
}

/// Parses a table. Returns the sockets that listen on a port, at the IPv4 loopback address or at every
/// address.
fn parse(table: &str, port: u16) -> Vec<Socket> {
    let (loopback, any) = (forms(Ipv4Addr::LOCALHOST), [word([0; 4]), word([0; 4]).repeat(4)]);
    let accepts = |row: &Row<'_>| {
        row.local.1 == port
            && row.state == LISTEN
            && loopback.iter().chain(&any).any(|address| address == row.local.0)
    };
    rows(table).filter(accepts).map(|row| Socket { user: row.user, inode: row.inode }).collect()
}

/// An IPv4 address as in the tables of IPv4 and of IPv6: words in native byte order.
fn forms(address: Ipv4Addr) -> [String; 2] {
    let (zero, address) = (word([0; 4]), word(address.octets()));
    let mapped = format!("{zero}{zero}{}{address}", word([0, 0, 0xff, 0xff]));
    [address, mapped]
}

fn word(bytes: [u8; 4]) -> String {
    format!("{:08X}", u32::from_ne_bytes(bytes))
}

/// Returns the sockets that a process has open. Empty if its open files cannot be read.
fn files(process: Entry) -> Vec<Holder> {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", process.pid.as_raw_pid())) else { return Vec::new() };
    let holder = |file: PathBuf| Some(Holder { process, inode: inode(&file)?, file });
    files.flatten().filter_map(|file| holder(file.path())).collect()
}

/// Returns the inode of an open file that is a socket.
fn inode(file: &Path) -> Option<u64> {
    let target = fs::read_link(file).ok()?;
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::process::{geteuid, getpid};

    use super::{Entry, Socket, are_held, files, listening, parse};

    #[test]
    fn a_listening_socket_is_found_with_its_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sockets = listening(port).unwrap();
        assert_eq!(sockets.len(), 1);
        assert_eq!(sockets[0].user, geteuid().as_raw());
        let mut held = files(Entry::read(getpid()).unwrap());
        held.retain(|holder| holder.inode == sockets[0].inode);
        assert!(are_held(&held));
        // A connection uses the port too, but does not listen.
        let _connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listening(port).unwrap(), sockets);
        drop(listener);
        assert_eq!(listening(port).unwrap(), []);
        assert!(!are_held(&held) && !are_held(&[]));
    }

    #[test]
    fn rows_of_other_ports_addresses_and_states_are_skipped() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 7 1 x\n\
            1: 0100007F:0050 0100007F:1234 01 00000000:00000000 00:00000000 00000000  1000        0 8 1 x\n\
            2: 0201A8C0:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 6 1 x\n\
            2: 00000000:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 9 1 x\n\
            3: broken\n";
        assert_eq!(parse(table, 80), [Socket { user: 1000, inode: 7 }]);
        assert_eq!(parse(table, 82), []);
    }
}
