//! Files below a directory.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink},
    path::{Path, PathBuf},
};

use arbitrary::Unstructured;
use sandbox_agent_sdk::tools::{ConfinedFiles, ReadText, Roots, TextFiles, WriteText};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

const SECRET: &str = "the secret of this machine";
/// New names are at the end, so that old inputs keep their meaning as far as possible.
const NAMES: [&str; 27] = [
    "..",
    ".",
    "inside",
    "out",
    "up",
    "loop",
    "root",
    ".git",
    "new",
    "outside",
    "secret",
    "file",
    "HEAD",
    "head",
    "bare",
    ".GIT",
    ".git.",
    ".g\u{200c}it",
    "git~1",
    ".envrc",
    ".ENVRC ",
    "x.code-workspace",
    "part",
    "objects",
    "refs",
    "commondir",
    "config",
];

/// The names that make a directory with a `HEAD` a git repository, and its configuration.
const PARTS: [&str; 4] = ["objects", "refs", "commondir", "config"];

/// The second and the third make their directory a git repository if they are its `HEAD`.
const CONTENTS: [&str; 3] = ["written", "ref: refs/heads/main\n", "0123456789012345678901234567890123456789"];

/// How many requests one input makes at most.
const REQUESTS: usize = 8;

/// No path leads out of the root, for reading or writing, and protected files are not written.
pub(crate) fn confinement(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let world = World::new();
    for _ in 0..REQUESTS {
        if input.is_empty() {
            return;
        }
        world.request(&mut input);
    }
}

/// A root with links that lead out of it, and a directory beside it.
struct World {
    directory: TempDir,
    files: ConfinedFiles,
    runtime: Runtime,
}

impl World {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let (root, outside) = (directory.path().join("root"), directory.path().join("outside"));
        fs::create_dir_all(root.join("inside")).unwrap();
        fs::create_dir(root.join(".git")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), SECRET).unwrap();
        fs::write(root.join("file"), "file").unwrap();
        fs::create_dir_all(root.join("bare/objects")).unwrap();
        fs::create_dir(root.join("bare/refs")).unwrap();
        fs::write(root.join("bare/HEAD"), CONTENTS[1]).unwrap();
        // Not a repository yet: git tracks no empty directories.
        fs::create_dir(root.join("part")).unwrap();
        fs::write(root.join("part/HEAD"), CONTENTS[1]).unwrap();
        symlink(&outside, root.join("out")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("../../outside", root.join("inside/out")).unwrap();
        symlink("../.git", root.join("inside/root")).unwrap();
        let files = ConfinedFiles::open(Roots::at(&root)).unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        Self { directory, files, runtime }
    }

    fn request(&self, input: &mut Unstructured<'_>) {
        let (writes, absolute) = (input.arbitrary().unwrap_or(false), input.arbitrary().unwrap_or(true));
        let path = self.path(input, absolute);
        if writes {
            let content = CONTENTS[input.int_in_range(0..=CONTENTS.len() - 1).unwrap_or(0)];
            let _refused = self.runtime.block_on(self.files.write(WriteText::new(&path, content)));
        } else if let Ok(text) = self.runtime.block_on(self.files.read(ReadText::new(&path))) {
            assert_ne!(text, SECRET, "{} was read", path.display());
        }
        self.check(&path);
    }

    /// A path of names that exist, of protected names, and of any bytes.
    fn path(&self, input: &mut Unstructured<'_>, absolute: bool) -> PathBuf {
        let mut path = if absolute { self.directory.path().join("root") } else { PathBuf::new() };
        for _ in 0..input.int_in_range(0..=6).unwrap_or(0) {
            match input.int_in_range(0..=NAMES.len() + ConfinedFiles::DENIED.len()) {
                Ok(at) if at < NAMES.len() => path.push(NAMES[at]),
                Ok(at) if at > NAMES.len() => {
                    path.push(ConfinedFiles::DENIED[at - NAMES.len() - 1].replace('*', "x"));
                }
                Ok(_) => {
                    let length = input.int_in_range(0..=12).unwrap_or(0);
                    let name = input.bytes(length).unwrap_or_default();
                    // An absolute path elsewhere would leave the world of this test if it were followed.
                    path.push(OsStr::from_bytes(name.strip_prefix(b"/").unwrap_or(name)));
                }
                Err(_) => break,
            }
        }
        path
    }

    /// No file with a protected name was created at any depth, in any spelling, and no directory became a repository.
    fn check_names(&self, directory: &Path, path: &Path) {
        let root = self.directory.path().join("root");
        for entry in fs::read_dir(directory).unwrap().flatten() {
            // These two were there before, and are checked by themselves.
            if [root.join(".git"), root.join("bare")].contains(&entry.path()) {
                continue;
            }
            let created = entry.path();
            assert!(!is_protected(created.strip_prefix(&root).unwrap()), "{} is protected", path.display());
            if entry.file_type().unwrap().is_dir() {
                self.check_names(&entry.path(), path);
            }
        }
        if directory == root.join("part") {
            return assert!(
                !PARTS.iter().any(|part| directory.join(part).exists()),
                "{} makes a repository",
                path.display()
            );
        }
        let head = fs::read_to_string(directory.join("HEAD")).unwrap_or_default();
        assert!(head.is_empty() || head == CONTENTS[0], "{} makes a repository", path.display());
    }

    fn check(&self, path: &Path) {
        let list = |directory: &str| {
            let entries = fs::read_dir(self.directory.path().join(directory)).unwrap().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(list("."), ["outside", "root"], "{} led out", path.display());
        assert_eq!(list("outside"), ["secret"], "{} led out", path.display());
        assert!(list("root/.git").is_empty(), "{} is protected", path.display());
        assert_eq!(list("root/bare"), ["HEAD", "objects", "refs"], "{} is in a repository", path.display());
        self.check_names(&self.directory.path().join("root"), path);
        let secret = fs::read_to_string(self.directory.path().join("outside/secret")).unwrap();
        assert_eq!(secret, SECRET, "{} was written", path.display());
    }
}

/// Whether a path ends with a protected name, as a file system compares names that ignores case and invisible characters
/// and has short names.
fn is_protected(path: &Path) -> bool {
    let names = path.iter().map(|name| {
        let name = name.to_string_lossy().to_lowercase().replace('\u{200c}', "");
        name.trim_end_matches(['.', ' ']).to_owned()
    });
    let path = names.fold(String::new(), |path, name| path + "/" + &name);
    path.ends_with("/git~1")
        || ConfinedFiles::DENIED.iter().any(|denied| {
            let denied = denied.to_lowercase();
            match denied.strip_prefix('*') {
                Some(end) => path.ends_with(end),
                None => path.ends_with(&format!("/{denied}")),
            }
        })
}
