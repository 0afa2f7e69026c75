//! Access control lists of files.
//!
//! With a list, the group bits of a file are the mask of its entries, and not the permissions of its group.

use std::io;

use cap_std::fs::File;
use rustix::fs::{XattrFlags, fgetxattr, fgetxattr_query, fremovexattr, fsetxattr};
use rustix::io::Errno;

/// The attribute with the POSIX access control list.
const NAME: &str = "system.posix_acl_access";

/// Returns the list of a file; `None` if it has none.
pub(super) fn read(file: &File) -> io::Result<Option<Vec<u8>>> {
    loop {
        let read = fgetxattr_query(file, NAME).and_then(|size| {
            let mut list = vec![0; size];
            fgetxattr(file, NAME, &mut list[..]).map(|size| {
                list.truncate(size);
                list
            })
        });
        match read {
            Ok(list) => return Ok(Some(list).filter(|list| !list.is_empty())),
            // The list has grown meanwhile.
            Err(Errno::RANGE) => {}
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives a new file this list, or none instead of one that it inherited from its directory. `false` if the system
/// refuses the list: the permission bits of the group and of others then have another meaning.
pub(super) fn write(file: &File, list: Option<&[u8]>) -> io::Result<bool> {
    if let Some(list) = list
        && fsetxattr(file, NAME, list, XattrFlags::empty()).is_ok()
    {
        return Ok(true);
    }
    match fremovexattr(file, NAME) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(list.is_none()),
        Err(error) => Err(error.into()),
    }
}
