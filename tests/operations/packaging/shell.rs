//! Completions and the manual page, as the command prints them.

use std::process::Command;

fn keyward(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_keyward"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_shell_completes_what_was_begun() {
    let script = keyward(&["completions", "bash"]);
    let ask = format!(
        "{script}\nCOMP_WORDS=(keyward ver); COMP_CWORD=1\n_keyward keyward ver keyward\necho \"${{COMPREPLY[*]}}\""
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "verify", "{output:?}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(keyward(&["completions", shell]).contains("backfill"), "{shell}");
    }
}

#[test]
fn the_manual_names_every_command_option_and_exit_code() {
    let manual = keyward(&["man"]);
    assert!(manual.contains(".TH keyward 1"), "{manual}");
    let help = keyward(&["--help"]);
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.contains(&"verify"), "{help}");
    for name in names.into_iter().filter(|name| *name != "help") {
        assert!(manual.contains(&format!(".SH {}\n", name.to_uppercase())), "{name}");
        for line in keyward(&[name, "--help"]).lines() {
            let Some(option) = line.split_whitespace().find_map(|word| word.strip_prefix("--")) else {
                continue;
            };
            let option = option.replace('-', "\\-");
            assert!(manual.contains(&format!("\\-\\-{option}")), "{name} --{option}");
        }
    }
    assert!(manual.contains("78") && manual.contains("65"), "{manual}");
}
