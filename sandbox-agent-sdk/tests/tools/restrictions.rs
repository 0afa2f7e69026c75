//! What commands may not do.

use std::os::unix::fs::symlink;

use sandbox_agent_sdk::tools::{
    Roots, TerminalCommand, TerminalError, TerminalOptions, Terminals, TextFiles, WriteText,
};
use serde_json::json;

use super::support::{Place, run, script, sh, within};

/// What a command wrote, once it has ended.
async fn output(terminals: &Terminals, command: &TerminalCommand) -> String {
    let id = terminals.create("s", command).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    terminals.output("s", &id, None).unwrap().text
}

#[tokio::test]
async fn only_commands_that_are_allowed_run() {
    let place = Place::new();
    let terminals = Terminals::new(place.options().allow_only(["echo", "true"]));
    for command in ["echo", "/bin/echo", "/usr/bin/echo", "/usr/../bin/echo"] {
        assert_eq!(output(&terminals, &TerminalCommand::new(command).args(["a b"])).await, "a b\n");
    }
    let refused = [
        "sh",
        "/bin/sh",
        "./echo",
        "echo ",
        " echo",
        "echo; id",
        "ECHO",
        "",
        "../bin/echo",
        "bin/echo",
        "echo\0",
        "/",
    ];
    for command in refused {
        let error = terminals.create("s", &TerminalCommand::new(command)).unwrap_err();
        assert!(matches!(error, TerminalError::NotAllowed(_)), "{command}: {error:?}");
        let data = error.to_rpc().data.unwrap();
        assert_eq!((&data["reason"], &data["command"]), (&json!("not_allowed"), &json!(command)));
    }
}

#[tokio::test]
async fn a_command_that_is_allowed_is_this_programs_and_not_one_that_the_agent_puts_in_its_way() {
    let place = Place::new();
    let trap = script(&place, "echo", "printf trapped");
    let terminals = Terminals::new(place.options().allow_only(["echo"]).allow_variables(["PATH"]));
    let root = place.root().display().to_string();
    let trapped = TerminalCommand::new("echo").args(["fine"]).env("PATH", &root);
    assert_eq!(output(&terminals, &trapped).await, "fine\n", "by the path of this program");
    let result = terminals.create("s", &TerminalCommand::new(trap));
    assert!(matches!(result, Err(TerminalError::NotAllowed(_))), "it has the name, and is another file");
    // A link to a program that is allowed is that program, under its own name and from its own place.
    symlink("/bin/echo", place.at("linked")).unwrap();
    let result = terminals.create("s", &TerminalCommand::new(place.at("linked").display().to_string()));
    assert!(matches!(result, Err(TerminalError::NotAllowed(_))), "it is the file, and has another name");
    // The same where a function decides.
    let terminals = Terminals::new(place.options().allow_if(|_| true).allow_variables(["PATH"]));
    assert_eq!(output(&terminals, &trapped).await, "fine\n");
    for relative in ["./echo", "../root/echo"] {
        let result = terminals.create("s", &TerminalCommand::new(relative));
        assert!(matches!(result, Err(TerminalError::NotAllowed(_))), "{relative}: {result:?}");
    }
}

#[tokio::test]
async fn a_program_that_the_agent_can_replace_does_not_run() {
    let place = Place::new();
    let name = "tool";
    std::fs::create_dir_all(place.at("venv/bin")).unwrap();
    let tool = script(&place, &format!("venv/bin/{name}"), "printf original");
    let elsewhere = place.outside().join(name);
    symlink(&tool, &elsewhere).unwrap();
    // It keeps its mode, so it is a program after that.
    place.files().write(WriteText::new(&tool, "#!/bin/sh\nprintf trapped\n")).await.unwrap();
    let link = elsewhere.display().to_string();
    for command in [tool, link] {
        let wanted = TerminalCommand::new(&command);
        for options in [place.options().allow_only([&command]), place.options().allow_if(|_| true)] {
            let error = Terminals::new(options.clone()).create("s", &wanted).unwrap_err();
            assert!(matches!(&error, TerminalError::Replaceable(_)), "{command}: {error:?}");
            assert_eq!(error.to_rpc().data.unwrap()["reason"], "replaceable");
            let terminals = Terminals::new(options.allow_programs_in_roots());
            assert_eq!(output(&terminals, &wanted).await, "trapped", "the application accepts it");
        }
        // Where every command may run, it is no other one.
        assert_eq!(output(&place.terminals(), &wanted).await, "trapped");
    }
}

#[tokio::test]
async fn variables_of_the_agent_are_refused_where_commands_are_restricted() {
    let place = Place::new();
    let restricted = [
        place.options().allow_only(["sh", "env"]),
        place.options().allow_if(|_| true),
        place.options().allow_only(["sh", "env"]).allow_variables(["CI"]),
        place.options().allow_variables(["CI"]),
    ];
    let loading = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "DYLD_INSERT_LIBRARIES",
        "BASH_ENV",
        "ENV",
        "NODE_OPTIONS",
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "PERL5OPT",
        "RUBYOPT",
        "GIT_SSH_COMMAND",
        "GIT_EXTERNAL_DIFF",
        "GIT_CONFIG_COUNT",
        "PATH",
        "HOME",
        "IFS",
        "EDITOR",
        "RUSTC_WRAPPER",
        "ci",
        "CI ",
        "X",
    ];
    for options in &restricted {
        let terminals = Terminals::new(options.clone());
        for name in loading {
            let error = terminals.create("s", &TerminalCommand::new("sh").env(name, "x")).unwrap_err();
            assert!(matches!(error, TerminalError::VariableNotAllowed(_)), "{name}: {error:?}");
            let data = error.to_rpc().data.unwrap();
            assert_eq!((&data["reason"], &data["variable"]), (&json!("variable_not_allowed"), &json!(name)));
        }
        assert_eq!(terminals.count(), 0);
    }
    let terminals = Terminals::new(restricted[2].clone());
    assert_eq!(output(&terminals, &sh_named("echo $CI").env("CI", "yes")).await, "yes\n");
    let terminals = Terminals::new(restricted[3].clone());
    assert_eq!(output(&terminals, &sh("echo $CI").env("CI", "yes")).await, "yes\n");
}

/// The shell by its name.
fn sh_named(line: &str) -> TerminalCommand {
    TerminalCommand::new("sh").args(["-c", line])
}

#[tokio::test]
async fn a_function_can_decide_by_everything_that_is_asked_for() {
    let place = Place::new();
    let options = place.options().allow_if(|command| command.args.iter().all(|arg| arg != "--force"));
    let terminals = Terminals::new(options);
    terminals.create("s", &TerminalCommand::new("true").args(["--gently"])).unwrap();
    let result = terminals.create("s", &TerminalCommand::new("true").args(["--force"]));
    assert!(matches!(result, Err(TerminalError::NotAllowed(_))));
}

#[tokio::test]
async fn a_line_is_for_the_shell_only_where_there_is_one() {
    let place = Place::new();
    let line = TerminalCommand::new("echo one && echo two");
    assert!(matches!(place.terminals().create("s", &line), Err(TerminalError::NoCommand(_))));
    let terminals = Terminals::new(place.options().shell("/bin/sh"));
    let id = terminals.create("s", &line).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "one\ntwo\n");
    let id = terminals.create("s", &TerminalCommand::new("echo").args(["a; echo b"])).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "a; echo b\n");
    let restricted = Terminals::new(place.options().shell("/bin/sh").allow_only(["echo"]));
    assert!(matches!(restricted.create("s", &line), Err(TerminalError::NotAllowed(_))));
}

#[tokio::test]
async fn a_command_starts_in_a_root_and_nowhere_else() {
    let place = Place::new();
    let terminals = place.terminals();
    let root = place.root().canonicalize().unwrap();
    assert_eq!(run(&terminals, "pwd -P").await.trim(), root.display().to_string());
    std::fs::create_dir(place.at("sub")).unwrap();
    symlink(place.outside(), place.at("out")).unwrap();
    symlink("sub", place.at("in")).unwrap();
    for good in [place.at("sub"), place.at("in"), place.at("sub/.."), place.root()] {
        terminals
            .create("s", &sh("true").cwd(&good))
            .unwrap_or_else(|error| panic!("{}: {error}", good.display()));
    }
    for bad in [
        place.outside(),
        place.at(".."),
        place.at("out"),
        place.at("sub/../../outside"),
        "/".into(),
        "sub".into(),
        "".into(),
    ] {
        let result = terminals.create("s", &sh("true").cwd(&bad));
        assert!(matches!(result, Err(TerminalError::Outside(_))), "{}: {result:?}", bad.display());
    }
    let file = place.file("f", "");
    for missing in [place.at("none"), file] {
        let result = terminals.create("s", &sh("true").cwd(&missing));
        assert!(matches!(result, Err(TerminalError::NoDirectory(_))), "{}: {result:?}", missing.display());
    }
    let nowhere = Terminals::new(TerminalOptions::new(Roots::new()));
    assert!(matches!(nowhere.create("s", &sh("true")), Err(TerminalError::Outside(_))));
}

#[tokio::test]
async fn a_root_can_have_another_name_for_the_agent() {
    let place = Place::new();
    std::fs::create_dir(place.at("sub")).unwrap();
    let terminals = Terminals::new(TerminalOptions::new(Roots::new().and_as("/work", place.root())));
    let id = terminals.create("s", &sh("pwd -P").cwd("/work/sub")).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    let expected = place.at("sub").canonicalize().unwrap().display().to_string();
    assert_eq!(terminals.output("s", &id, None).unwrap().text.trim(), expected);
}

#[tokio::test]
async fn the_environment_of_this_program_stays_with_it() {
    // The test runner sets this one.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let place = Place::new();
    let line = "echo [$CARGO_MANIFEST_DIR] $([ -n \"$PATH\" ] && echo path)";
    assert_eq!(run(&place.terminals(), line).await, "[] path\n");
    let one = Terminals::new(place.options().inherit(["CARGO_MANIFEST_DIR"]));
    assert!(!run(&one, line).await.starts_with("[]"));
    let all = Terminals::new(place.options().inherit_everything());
    assert!(!run(&all, line).await.starts_with("[]"));
}

#[tokio::test]
async fn variables_that_cannot_be_set_are_refused() {
    let place = Place::new();
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")] {
        let result = place.terminals().create("s", &sh("true").env(name, value));
        assert!(matches!(result, Err(TerminalError::Environment(_))), "{name:?} {value:?}");
    }
}
