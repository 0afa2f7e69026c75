//! Which processes hold a listening socket.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, geteuid};

use super::membership::Membership;
use super::sweep::members;
use super::table::Look;
use super::{Holders, Listener};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// One row of `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    user: u32,
    inode: u64,
}

/// Whether members of this tree hold every socket that accepts connections to this loopback port.
///
/// The table of sockets is read before the members' open files, because a listening socket always has an
/// owner. Another user can copy the marks of members, but not the user id of a socket or a process. Both must
/// be this user's.
pub(super) fn listener(membership: &Membership, port: u16) -> io::Result<Listener> {
    let sockets = listening(port)?;
    if sockets.is_empty() {
        return Ok(Listener::None);
    }
    let user = geteuid().as_raw();
    let (mut held, mut entries) = (HashSet::new(), Vec::new());
    for entry in members(&[membership], Look::new().entries) {
        if fs::metadata(format!("/proc/{}", entry.pid.as_raw_pid()))
            .is_ok_and(|process| process.uid() == user)
        {
            let found = inodes(entry.pid);
            if sockets.iter().any(|socket| found.contains(&socket.inode)) {
                entries.push(entry);
            }
            held.extend(found);
        }
    }
    let is_held = |socket: &Socket| socket.user == user && held.contains(&socket.inode);
    Ok(if sockets.iter().all(is_held) { Listener::Member(Holders { entries }) } else { Listener::Foreign })
}

/// Whether this process holds every socket that accepts connections to this loopback port.
#[cfg(feature = "providers")]
pub(crate) fn is_own(port: u16) -> io::Result<bool> {
    let (sockets, held) = (listening(port)?, inodes(rustix::process::getpid()));
    Ok(!sockets.is_empty() && sockets.iter().all(|socket| held.contains(&socket.inode)))
}

/// Returns the sockets that listen on a port of the IPv4 loopback address.
fn listening(port: u16) -> io::Result<Vec<Socket>> {
    let mut sockets = parse(&fs::read_to_string("/proc/net/tcp")?, port);
    // An IPv6 socket also accepts IPv4 connections. A kernel without IPv6 has no such table.
    match fs::read_to_string("/proc/net/tcp6") {
        Ok(table) => sockets.extend(parse(&table, port)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(sockets)
}

/// Parses a table. Returns the sockets that listen on a port, at the IPv4 loopback address or at every
/// address.
fn parse(table: &str, port: u16) -> Vec<Socket> {
    let addresses = addresses();
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, local_port) = fields.get(1)?.rsplit_once(':')?;
        let fits = u16::from_str_radix(local_port, 16) == Ok(port)
            && fields.get(3) == Some(&LISTEN)
            && addresses.iter().any(|fitting| fitting == address);
        let (user, inode) = (fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?);
        fits.then_some(Socket { user, inode })
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// The addresses that accept connections to 127.0.0.1, formatted as in the tables: words in native byte
/// order.
fn addresses() -> [String; 4] {
    let word = |bytes| format!("{:08X}", u32::from_ne_bytes(bytes));
    let (zero, loopback) = (word([0; 4]), word([127, 0, 0, 1]));
    let mapped = format!("{zero}{zero}{}{loopback}", word([0, 0, 0xff, 0xff]));
    [loopback, mapped, zero.repeat(4), zero]
}

/// Returns the inodes of the sockets that a process holds. Empty if its open files cannot be read.
fn inodes(pid: Pid) -> Vec<u64> {
    let Ok(files) = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())) else { return Vec::new() };
    let inode = |target: &str| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    files.flatten().filter_map(|file| inode(fs::read_link(file.path()).ok()?.to_str()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::process::{geteuid, getpid};

    use super::{Socket, inodes, listening, parse};

    #[test]
    fn a_listening_socket_is_found_with_its_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sockets = listening(port).unwrap();
        assert_eq!(sockets.len(), 1);
        assert_eq!(sockets[0].user, geteuid().as_raw());
        assert!(inodes(getpid()).contains(&sockets[0].inode));
        // A connection uses the port too, but does not listen.
        let _connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(listening(port).unwrap(), sockets);
        drop(listener);
        assert_eq!(listening(port).unwrap(), []);
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
