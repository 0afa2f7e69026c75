//! Attacks by way of files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
#[cfg(target_os = "linux")]
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_os = "linux")]
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandbox_agent_sdk::tools::{AgentTools, ConfinedFiles, FileError};
use serde_json::json;

use super::support::{Place, lines, read, within, write};

/// Paths by which an agent could make programs of the user run code.
const PLANTED: [&str; 48] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git",
    "sub/.git/hooks/post-checkout",
    ".GIT/config",
    "sub/../.git/config",
    ".envrc",
    "deep/.envrc",
    ".vscode/tasks.json",
    ".bashrc",
    ".ssh/authorized_keys",
    ".cargo/config.toml",
    ".config/fish/config.fish",
    "home/.config/git/config",
    ".CONFIG/Fish/conf.d/x.fish",
    ".Rprofile",
    ".vim/plugin/x.vim",
    ".vimrc",
    ".mise.toml",
    "sub/mise.toml",
    ".pnp.cjs",
    ".pnp.loader.mjs",
    "sub/bunfig.toml",
    ".mise.local.toml",
    "mise/config.toml",
    "lefthook.yaml",
    "lefthook.toml",
    "lefthook.json",
    "lefthook-local.yml",
    ".overcommit.yml",
    "my.code-workspace",
    "sub/MY.Code-Workspace",
    ".hgrc",
    ".pam_environment",
    ".xsessionrc",
    ".screenrc",
    ".gvimrc",
    ".ideavimrc",
    ".psqlrc",
    ".sqliterc",
    ".curlrc",
    ".wgetrc",
    ".pryrc",
    ".bash_completion",
    ".config/Code/User/settings.json",
    ".config/emacs/init.el",
    ".config/zed/settings.json",
    ".config/tmux/tmux.conf",
];

#[tokio::test]
async fn files_that_make_other_programs_run_code_are_not_written() {
    let place = Place::new();
    let files = place.files();
    let all = ConfinedFiles::DENIED.iter().map(|name| name.replace('*', "x"));
    for planted in PLANTED.map(str::to_owned).into_iter().chain(all) {
        let result = write(&files, place.at(&planted), "attack").await;
        assert!(matches!(result, Err(FileError::Protected(_))), "{planted}: {result:?}");
    }
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0, "nothing is created for a refused file");
    let tools = AgentTools::new().files(files.clone());
    let params = json!({"sessionId": "s", "path": place.at(".git/config"), "content": "attack"});
    let error = within(tools.respond("fs/write_text_file", &params).unwrap()).await.unwrap_err();
    assert_eq!(error.data.unwrap()["reason"], "protected");
    // They can be read, and files with similar names can be written.
    fs::create_dir_all(place.at(".git/hooks")).unwrap();
    place.file(".git/config", "mine");
    assert_eq!(read(&files, place.at(".git/config")).await.unwrap(), "mine");
    for harmless in [
        ".gitignore",
        ".github/workflows/ci.yml",
        ".env.example",
        "git/config",
        ".config/nextest.toml",
        ".config/sub/fish",
        "fish/config.fish",
        "code-workspace",
        "my.code-workspace.md",
        "mise/tasks.md",
    ] {
        write(&files, place.at(harmless), "fine").await.unwrap();
    }
}

#[tokio::test]
async fn no_spelling_leads_to_a_protected_name() {
    let place = Place::new();
    let files = place.files();
    // File systems that ignore case also fold these letters and ignore these characters.
    for planted in [
        ".g\u{200d}it/config",
        ".git\u{feff}/config",
        ".\u{17f}sh/authorized_keys",
        ".hus\u{212a}y/pre-commit",
        ".gitcon\u{fb01}g",
        ".claude/settings.json",
        "sub/.cursor/mcp.json",
        ".gdbinit",
        "ENVRC~1",
        "VSCODE~1/tasks.json",
    ] {
        let result = write(&files, place.at(planted), "attack").await;
        assert!(matches!(result, Err(FileError::Protected(_))), "{planted:?}: {result:?}");
    }
    for harmless in ["über.txt", "s\u{200d}h", "a~1", "claude/settings.json"] {
        write(&files, place.at(harmless), "fine").await.unwrap();
    }
}

/// Git takes a directory with these files for a bare repository, and runs the programs that its `config` names.
#[tokio::test]
async fn no_bare_repository_is_planted() {
    let place = Place::new();
    let files = place.files();
    let marker = place.outside().join("ran");
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {}\n\tfsmonitor = touch {}; false\n",
        place.at("docs").display(),
        marker.display()
    );
    let heads = [
        "ref: refs/heads/main\n".to_owned(),
        format!("{:040x}\n", 7),
        format!("{:064x}", 7),
        // Git reads the first digits and ignores the rest.
        format!("{:040x} and more", 7),
        format!("{:041x}", 7),
        format!("{:040X}\u{e9}", 7),
    ];
    for head in &heads {
        for (name, content) in
            [("docs/config", config.as_str()), ("docs/objects/info/note", ""), ("docs/refs/heads/note", "")]
        {
            write(&files, place.at(name), content).await.unwrap();
        }
        for name in ["docs/HEAD", "docs/head"] {
            let result = write(&files, place.at(name), head.as_str()).await;
            assert!(matches!(result, Err(FileError::Protected(_))), "{name} {head:?}: {result:?}");
        }
        let _ = std::process::Command::new("git").arg("status").current_dir(place.at("docs")).output();
        assert!(!marker.exists(), "git ran a program of the agent");
    }
    // A file of this name that git does not take for its own is written.
    write(&files, place.at("docs/HEAD"), "The head of the list.").await.unwrap();
    write(&files, place.at("docs/HEAD"), format!("{:039x}", 7).as_str()).await.unwrap();
    write(&files, place.at("head/index.html"), "ref: refs/heads/main").await.unwrap();
}

#[tokio::test]
async fn a_repository_of_any_name_is_not_written() {
    let place = Place::new();
    let files = place.files();
    let git = |arguments: &[&str]| {
        let status =
            std::process::Command::new("git").args(arguments).current_dir(place.root()).status().unwrap();
        assert!(status.success(), "{arguments:?}");
    };
    git(&["init", "--quiet", "--bare", "store"]);
    git(&["init", "--quiet", "--separate-git-dir", "elsewhere", "tree"]);
    for directory in ["link", "linked", "old/objects", "old/refs"] {
        std::fs::create_dir_all(place.at(directory)).unwrap();
    }
    // The directory of a linked working tree, and the form of `HEAD` of old versions.
    place.file("linked/HEAD", "ref: refs/heads/main\n");
    place.file("linked/commondir", "../store\n");
    symlink("refs/heads/main", place.at("old/HEAD")).unwrap();
    symlink("../store", place.at("link/store")).unwrap();
    for name in [
        "store/hooks/post-commit",
        "store/config",
        "store/new/deep/file",
        "elsewhere/hooks/post-commit",
        "linked/config.worktree",
        "old/config",
        "link/store/hooks/x",
    ] {
        let result = write(&files, place.at(name), "attack").await;
        assert!(matches!(result, Err(FileError::Protected(_))), "{name}: {result:?}");
        assert!(!place.at("store/hooks/post-commit").exists() && !place.at("store/new").exists());
    }
    write(&files, place.at("tree/file"), "plain").await.unwrap();
    write(&files.allow_all_writes(), place.at("store/hooks/x"), "allowed").await.unwrap();
}

/// Git tracks no empty directories, so that a repository among the files of a project may lack some of its parts.
#[tokio::test]
async fn a_part_of_a_repository_is_not_completed() {
    for there in [&[][..], &["objects"], &["refs"], &["hooks"]] {
        let place = Place::new();
        let files = place.files();
        let marker = place.outside().join("ran");
        let config = format!(
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {}\n\tfsmonitor = touch {}; false\n",
            place.root().display(),
            marker.display()
        );
        fs::create_dir(place.at("fix")).unwrap();
        place.file("fix/HEAD", "ref: refs/heads/main\n");
        there.iter().for_each(|name| fs::create_dir(place.at(format!("fix/{name}"))).unwrap());
        for name in ["evil/config", "evil/objects/x", "evil/refs/heads/n"] {
            write(&files, place.at(name), config.as_str()).await.unwrap();
        }
        let mut results = Vec::new();
        for (name, content) in [
            ("fix/config", config.as_str()),
            ("fix/refs/heads/n", ""),
            ("fix/refs", ""),
            ("fix/objects/x", ""),
            ("fix/Objects/deep/x", ""),
            ("fix/new/../objects/x", ""),
            ("fix/commondir", "../evil\n"),
        ] {
            let result = write(&files, place.at(name), content).await;
            let _ = std::process::Command::new("git").arg("status").current_dir(place.at("fix")).output();
            assert!(!marker.exists(), "git ran a program of the agent after {name}, {there:?}");
            results.push((name, result));
        }
        let written: Vec<_> = results.iter().filter(|(_, result)| result.is_ok()).collect();
        assert!(written.is_empty(), "{written:?}, {there:?}");
        let mut left: Vec<_> =
            fs::read_dir(place.at("fix")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.retain(|name| name != "HEAD" && !there.iter().any(|there| name == there));
        assert!(left.is_empty(), "{left:?}");
        write(&files, place.at("fix/notes.txt"), "plain").await.unwrap();
        write(&files, place.at("fix/objects.txt"), "plain").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_of_any_length_is_refused_or_opened_in_bounded_time() {
    let place = Place::new();
    let files = place.files();
    let root = place.root().display().to_string();
    for path in [
        format!("{root}/{}x", "a/".repeat(300_000)),
        format!("{root}/{}x", "../root/".repeat(100_000)),
        format!("{root}/{}", "a".repeat(1_000_000)),
        format!("{root}/{}x", "./".repeat(500_000)),
        format!("{root}{}x", "/".repeat(1_000_000)),
    ] {
        for _ in 0..8 {
            assert!(write(&files, &path, "attack").await.is_err(), "{}", path.len());
            assert!(read(&files, &path).await.is_err(), "{}", path.len());
        }
    }
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0, "nothing is created for a refused file");
    write(&files, format!("{root}/{}x", "a/".repeat(100)), "fine").await.unwrap();
}

#[tokio::test]
async fn a_hard_link_to_a_file_outside_is_replaced_and_the_file_outside_is_not_changed() {
    let place = Place::new();
    let secret = place.outside().join("secret");
    fs::hard_link(&secret, place.at("link")).unwrap();
    write(&place.files(), place.at("link"), "attack").await.unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(fs::read_to_string(place.at("link")).unwrap(), "attack");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_root_that_was_deleted_or_moved_leads_nowhere_else() {
    let place = Place::new();
    let files = place.files();
    place.file("f", "inside");
    let moved = place.outside().join("moved");
    fs::rename(place.root(), &moved).unwrap();
    fs::create_dir(place.root()).unwrap();
    place.file("f", "another directory");
    // The directory that was opened, under its new name.
    assert_eq!(read(&files, place.at("f")).await.unwrap(), "inside");
    write(&files, place.at("f"), "written").await.unwrap();
    assert_eq!(fs::read_to_string(moved.join("f")).unwrap(), "written");
    assert!(matches!(write(&files, place.at(".envrc"), "x").await, Err(FileError::Protected(_))));
    fs::remove_dir_all(&moved).unwrap();
    assert!(write(&files, place.at("new"), "x").await.is_err() && read(&files, place.at("f")).await.is_err());
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "another directory");
}

#[tokio::test]
async fn links_do_not_lead_to_protected_files() {
    let place = Place::new();
    let files = place.files();
    fs::create_dir_all(place.at(".git/hooks")).unwrap();
    place.file(".git/config", "mine");
    symlink(".git", place.at("innocent")).unwrap();
    symlink(".git/config", place.at("notes.txt")).unwrap();
    symlink("innocent/hooks", place.at("scripts")).unwrap();
    fs::create_dir(place.at("dir")).unwrap();
    symlink("../.git/hooks", place.at("dir/hooks")).unwrap();
    for path in [
        "innocent/config",
        "notes.txt",
        "scripts/pre-commit",
        "dir/hooks/pre-commit",
        "innocent/new/deep/file",
    ] {
        let result = write(&files, place.at(path), "attack").await;
        assert!(matches!(result, Err(FileError::Protected(_))), "{path}: {result:?}");
    }
    assert_eq!(fs::read_to_string(place.at(".git/config")).unwrap(), "mine");
    assert_eq!(fs::read_dir(place.at(".git/hooks")).unwrap().count(), 0);
    assert!(!place.at(".git/new").exists(), "no directory is created behind a link");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_swapped_for_a_link_meanwhile_does_not_lead_to_protected_files() {
    let place = Place::new();
    let files = place.files();
    fs::create_dir_all(place.at(".git/hooks")).unwrap();
    fs::create_dir(place.at("dir")).unwrap();
    symlink(".git/hooks", place.at("link")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = {
        let (stop, root) = (Arc::clone(&stop), place.root());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let (one, other) = (root.join("dir"), root.join("link"));
                renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
            }
        })
    };
    let mut outcomes = (0, 0);
    for _ in 0..3000 {
        match write(&files, place.at("dir/pre-commit"), "attack").await {
            Ok(()) => outcomes.0 += 1,
            Err(FileError::Protected(_)) => outcomes.1 += 1,
            Err(_) => {}
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(outcomes.0 > 0 && outcomes.1 > 0, "the race was not run: {outcomes:?}");
    assert_eq!(fs::read_dir(place.at(".git/hooks")).unwrap().count(), 0, "a hook was planted");
}

#[tokio::test]
async fn the_list_of_protected_names_can_be_extended_and_switched_off() {
    let place = Place::new();
    let more = place.files().deny_writes(["Makefile"]);
    assert!(matches!(write(&more, place.at("sub/makefile"), "x").await, Err(FileError::Protected(_))));
    assert!(matches!(write(&more, place.at(".envrc"), "x").await, Err(FileError::Protected(_))));
    let all = place.files().allow_all_writes();
    write(&all, place.at(".envrc"), "x").await.unwrap();
    let own = place.files().allow_all_writes().deny_writes(["Makefile"]);
    write(&own, place.at(".git/config"), "x").await.unwrap();
    assert!(matches!(write(&own, place.at("Makefile"), "x").await, Err(FileError::Protected(_))));
    assert!(ConfinedFiles::DENIED.contains(&".git"));
}

#[tokio::test]
async fn setuid_and_setgid_bits_do_not_pass_to_what_the_agent_writes() {
    let place = Place::new();
    let path = place.file("tool", "#!/bin/sh\n");
    for special in [0o4755, 0o2755, 0o6755, 0o1755] {
        fs::set_permissions(&path, fs::Permissions::from_mode(special)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, special);
        write(&place.files(), &path, "attack").await.unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o755, "{special:o}");
    }
}

#[tokio::test]
async fn the_owner_of_a_file_does_not_change() {
    let place = Place::new();
    let path = place.file("theirs", "old");
    // Only the superuser can give a file away, and back.
    if let Err(error) = chown(&path, Some(12345), Some(23456)) {
        assert!(std::env::var_os("CI").is_none(), "this test needs root: {error}");
        eprintln!("NOT TESTED: {error}");
        return;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4640)).unwrap();
    write(&place.files(), &path, "new").await.unwrap();
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (12345, 23456, 0o640));
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
}

#[tokio::test]
async fn a_huge_sparse_file_does_not_block_other_reads() {
    let place = Place::new();
    fs::File::create(place.at("huge")).unwrap().set_len(1 << 42).unwrap();
    place.file("small", "text");
    let files = place.files().max_at_once(2);
    let scan = |line, limit| lines(&files, place.at("huge"), line, limit);
    // More scans than may run at once, and a read behind them.
    let scans = futures::future::join_all((0..4).map(|_| scan(Some(2), None)));
    let (scanned, text) = futures::join!(scans, read(&files, place.at("small")));
    assert_eq!(text.unwrap(), "text");
    for result in scanned {
        assert!(matches!(result, Err(FileError::ScanLimit { limit: 268_435_456, .. })), "{result:?}");
    }
}

#[tokio::test]
async fn the_limit_of_a_scan_is_exact() {
    let place = Place::new();
    let path = place.file("f", "one\ntwo\nthree\n");
    let end = "one\ntwo\n".len() as u64;
    let scan = async |limit, line, count| lines(&place.files().scan_limit(limit), &path, line, count).await;
    for limit in [end, end + 1, 1000] {
        assert_eq!(scan(limit, Some(2), Some(1)).await.unwrap(), "two\n", "{limit}");
    }
    let result = scan(end - 1, Some(2), Some(1)).await;
    assert!(matches!(result, Err(FileError::ScanLimit { limit: 7, .. })), "{result:?}");
    // To the end of the file.
    assert_eq!(scan(14, Some(2), None).await.unwrap(), "two\nthree\n");
    assert!(matches!(scan(13, Some(2), None).await, Err(FileError::ScanLimit { .. })));
    assert!(matches!(scan(0, None, None).await, Err(FileError::ScanLimit { .. })));
    assert_eq!(scan(0, None, Some(0)).await.unwrap(), "");
}
