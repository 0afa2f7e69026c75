//! The files of the server's machine.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;

use super::file_reader::FileReader;
use super::http::{Call, Http};
use super::parts::write_in_parts;
use super::route::Route;
use super::upload::Upload;
use crate::Error;
use crate::control::{FsEntries, FsEntry, FsMove, FsMoved, FsPath, FsStat, FsUploaded, FsWritten};

/// Reads and writes files of the server's machine. Cheap to clone; needs no connection.
///
/// All paths refer to the server's machine and may contain any character. A relative path starts at the server's home
/// directory and must not leave it.
///
/// # Errors
/// If a path does not exist, the error's [`is_not_found`](Error::is_not_found) is true.
///
/// # Large files
/// [`open`](Self::open) streams a file of any size in chunks. A server may limit the size of a write. Released servers
/// accept [2 MiB](crate::control::RELEASED_BODY_LIMIT) for a file or an archive. A larger body fails with
/// [`Error::PayloadTooLarge`], and the existing file is unchanged. Uploads are streamed, so a server without a limit
/// accepts files of any size while the client uses little memory. [`write_in_parts`](Self::write_in_parts) avoids the
/// limit if the server can run commands.
#[derive(Debug, Clone)]
pub struct Files {
    http: Http,
}

impl Files {
    pub(super) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Lists a directory, in no particular order. An empty path is the home directory.
    ///
    /// Symbolic links are listed as files.
    pub fn list(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<Vec<FsEntry>, Error>> {
        let route = Route::new("/v1/fs/entries").query("path", path.as_ref());
        let entries = self.http.value::<FsEntries>(Ok(Call::new("list files", Method::GET, route)));
        entries.map(|listing| listing.map(|listing| listing.entries)).boxed()
    }

    /// Returns the type and size of a path. Follows symbolic links.
    pub fn stat(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsStat, Error>> {
        let route = Route::new("/v1/fs/stat").query("path", path.as_ref());
        self.http.value(Ok(Call::new("stat file", Method::GET, route)))
    }

    /// Returns whether a path exists.
    pub fn exists(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<bool, Error>> {
        self.stat(path)
            .map(|stat| match stat {
                Ok(_) => Ok(true),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error),
            })
            .boxed()
    }

    /// Opens a file for streaming. Memory use does not depend on its size.
    pub fn open(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FileReader, Error>> {
        let route = Route::new("/v1/fs/file").query("path", path.as_ref());
        let body = self.http.body(Ok(Call::new("read file", Method::GET, route)));
        body.map(|body| body.map(FileReader::new)).boxed()
    }

    /// Reads a whole file into memory. Use [`open`](Self::open) for large files.
    ///
    /// There is no timeout for the whole transfer, only [`ControlTimeouts::stall`](super::ControlTimeouts::stall).
    ///
    /// # Errors
    /// [`Error::MessageTooLarge`] if the file is larger than [`Limits::file`](crate::limits::Limits#structfield.file).
    pub fn read(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<Bytes, Error>> {
        let (reader, limit) = (self.open(path), self.http.limits().file);
        Box::pin(async move { reader.await?.into_bytes(limit).await })
    }

    /// Reads a whole text file into memory.
    ///
    /// # Errors
    /// [`Error::Decode`] if the file is not valid UTF-8. [`Error::MessageTooLarge`] if it is larger than
    /// [`Limits::file`](crate::limits::Limits#structfield.file).
    pub fn read_text(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<String, Error>> {
        let (reader, limit) = (self.open(path), self.http.limits().file);
        Box::pin(async move {
            let reader = reader.await?;
            let what = reader.what();
            let bytes = reader.into_bytes(limit).await?;
            String::from_utf8(bytes.into()).map_err(|error| Error::Decode {
                what: what.to_owned(),
                raw: String::from_utf8_lossy(error.as_bytes()).into_owned(),
                source: Arc::new(error.utf8_error()),
            })
        })
    }

    /// Writes a file from bytes, text or a stream.
    ///
    /// Replaces an existing file and creates missing parent directories.
    pub fn write(
        &self,
        path: impl AsRef<str>,
        content: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsWritten, Error>> {
        let route = Route::new("/v1/fs/file").query("path", path.as_ref());
        let call = Call::new("write file", Method::PUT, route);
        self.http.value(Ok(call.upload("application/octet-stream", content.into())))
    }

    /// Writes a file in parts. Its size may exceed the server's limit for one request.
    ///
    /// The parts are written to a directory beside the file, and a command on the server (`sh`, with `cat`
    /// and `mv`) joins them. The last step replaces the file atomically; the new file has default
    /// permissions. A symbolic link is replaced as well, not followed. A file of up to 1 MiB is written like
    /// [`write`](Self::write).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server cannot run commands; nothing is written. [`Error::Http`] with
    /// status 200 and the command's output if the command fails. The parts are removed after a failure if the
    /// server is reachable.
    ///
    /// # Cancel safety
    /// Not cancel safe: dropping the future can leave a directory whose name ends in `.parts-` and a number.
    pub fn write_in_parts(
        &self,
        path: impl AsRef<str>,
        content: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsWritten, Error>> {
        let path = path.as_ref().to_owned();
        Box::pin(write_in_parts(self.http.clone(), self.clone(), path, content.into()))
    }

    /// Unpacks an uncompressed tar archive into a directory. An empty path is the home directory.
    ///
    /// If this fails, entries that were already unpacked remain.
    pub fn upload_tar(
        &self,
        directory: impl AsRef<str>,
        archive: impl Into<Upload>,
    ) -> BoxFuture<'static, Result<FsUploaded, Error>> {
        let route = Route::new("/v1/fs/upload-batch").query("path", directory.as_ref());
        let call = Call::new("upload archive", Method::POST, route);
        self.http.value(Ok(call.upload("application/x-tar", archive.into())))
    }

    /// Creates a directory and its parents. Succeeds if it exists.
    pub fn make_directory(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/mkdir").query("path", path.as_ref());
        self.http.value(Ok(Call::new("make directory", Method::POST, route)))
    }

    /// Moves or renames a file or a directory.
    pub fn rename(&self, order: FsMove) -> BoxFuture<'static, Result<FsMoved, Error>> {
        let call = Call::new("move file", Method::POST, Route::new("/v1/fs/move"));
        self.http.value(call.json(&order))
    }

    /// Deletes a file or an empty directory.
    pub fn delete(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/entry").query("path", path.as_ref());
        self.http.value(Ok(Call::new("delete file", Method::DELETE, route)))
    }

    /// Deletes a file, or a directory with all its contents.
    pub fn delete_all(&self, path: impl AsRef<str>) -> BoxFuture<'static, Result<FsPath, Error>> {
        let route = Route::new("/v1/fs/entry").query("path", path.as_ref()).flag("recursive", true);
        self.http.value(Ok(Call::new("delete directory", Method::DELETE, route)))
    }
}
