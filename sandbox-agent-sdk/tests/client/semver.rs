//! What a later version may add without breaking applications, checked over the formatted source.

use std::path::{Path, PathBuf};

/// Types and variants that stay as they are, or that applications construct, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("client/stream.rs: Resend", "what a layer returns"),
    ("control/desktop/request.rs: Region", "a rectangle"),
    ("control/processes/info.rs: ProcessConfig", "configuration that applications write"),
    ("control/terminal.rs: TerminalSize", "rows and columns"),
    ("convert/mcp.rs: OtherMcpServer", "configuration that applications write: one JSON object"),
    ("convert/update/compaction.rs: Patched", "absent, null and a value are all there is"),
    ("sessions/status.rs: ResumeSupport", "what applications pass to compute a status"),
    (
        "sessions/status.rs: SessionStatus",
        "the states of the data model, which applications match completely",
    ),
    ("sessions/store/error.rs: StoreError::BadCursor", "what stores construct"),
    ("sessions/store/error.rs: StoreError::Exists", "what stores construct"),
    ("sessions/store/error.rs: StoreError::NewerSchema", "what stores construct"),
    ("sessions/store/error.rs: StoreError::NotAllowed", "what stores construct"),
    ("sessions/store/error.rs: StoreError::NotFound", "what stores construct"),
    ("sessions/store/error.rs: StoreError::OwnershipLost", "what stores construct"),
    ("sessions/store/error.rs: StoreError::ReadOnly", "what stores construct"),
    ("sessions/store/error.rs: StoreError::Transcript", "what stores construct"),
    ("sessions/store/error.rs: StoreError::Unreadable", "what stores construct"),
    ("sessions/store/event.rs: EventKey", "a store has a column for each kind of key, and parses it back"),
    ("sessions/store/ownership.rs: Fence", "what stores construct"),
    ("sessions/store/ownership.rs: ScannedTo", "what stores construct"),
    ("sessions/store/patch.rs: Change", "keep, set and clear are all there is, and a store must apply each"),
    ("sessions/store/position.rs: Fingerprint", "what stores construct: one number"),
    ("sessions/store/position.rs: StreamPosition", "what stores construct"),
    ("sessions/store/query.rs: EventOrder", "a store must implement every order"),
    ("sessions/store/record.rs: AgentSession", "what stores construct"),
    ("tools/files/error.rs: FileError::Io", "what implementations of file access construct"),
    ("tools/files/error.rs: FileError::NotText", "what implementations of file access construct"),
    ("tools/files/error.rs: FileError::PathTooLong", "what implementations of file access construct"),
    ("tools/files/error.rs: FileError::ScanLimit", "what implementations of file access construct"),
    ("tools/files/error.rs: FileError::TooLarge", "what implementations of file access construct"),
];

/// The crates whose types may be part of the interface, and why.
const CRATES: &[(&str, &str)] = &[
    ("std", "the standard library"),
    ("serde", "the traits of serialization"),
    ("serde_json", "fields that this version does not know are JSON"),
    ("futures", "boxed futures, and the trait of streams"),
    ("bytes", "contents of files and output, without a copy"),
    ("acp_http_client", "the protocol crate of this workspace, which has the same version"),
];

/// Names the crates that this one depends on.
const DEPENDENCIES: &str = include_str!("../../Cargo.toml");

/// Foreign types in single places, and why.
const TYPES: &[(&str, &str)] = &[
    ("http_client", "`reqwest::Client`: applications bring their proxies and certificates"),
    ("reader", "`tokio::io::AsyncRead`: the source of an upload"),
];

#[test]
fn the_interface_can_grow_without_breaking_applications() {
    let files: Vec<_> = sources()
        .into_iter()
        .map(|(file, source)| (file, Items::read(&source), foreign_names(&source)))
        .collect();
    let types: Vec<&str> =
        files.iter().flat_map(|(_, items, _)| &items.types).map(|known| known.name.as_str()).collect();
    assert!(types.len() > 150, "only {} types were found", types.len());
    let mut wrong = Vec::new();
    let mut unused: Vec<_> = (0..EXCEPTIONS.len()).collect();
    for (file, items, foreign) in &files {
        for defect in items.types.iter().flat_map(Type::defects) {
            let defect = format!("{file}: {defect}");
            match EXCEPTIONS.iter().position(|(known, _)| is_of(&defect, known)) {
                Some(exception) => unused.retain(|unused| *unused != exception),
                None => wrong.push(defect),
            }
        }
        // The conversions of internal types are not part of the interface.
        let is_public = |signature: &&String| {
            let of =
                signature.strip_prefix("impl From<").and_then(|conversion| conversion.rsplit(" for ").next());
            of.is_none_or(|of| words(of).next().is_some_and(|of| types.contains(&of)))
        };
        for signature in items.signatures.iter().filter(is_public) {
            let name =
                signature.split("fn ").nth(1).unwrap_or(signature).split(['(', '<']).next().unwrap_or("");
            if has_array(signature) {
                wrong.push(format!("{file}: the length of an array is part of `{signature}`"));
            }
            let is_known = TYPES.iter().any(|(known, _)| *known == name);
            for word in words(signature).filter(|word| foreign.iter().any(|known| known == word) && !is_known)
            {
                wrong.push(format!("{file}: `{word}` of another crate is part of `{signature}`"));
            }
        }
    }
    wrong.extend(unused.into_iter().map(|unused| format!("{} is not needed", EXCEPTIONS[unused].0)));
    assert!(wrong.is_empty(), "{} defects:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_search_finds_what_cannot_grow() {
    let source = "use url::Url;\n#[derive(Debug)]\npub enum Exhaustive {\n    Plain,\n    Fields {\n        a: u8,\n    },\n}\n\
        pub struct Literal {\n    pub a: [u8; 4],\n}\n#[non_exhaustive]\npub enum Fine {\n    #[non_exhaustive]\n    Fields {\n        \
        a: u8,\n    },\n}\npub struct Hidden {\n    pub a: u8,\n    b: u8,\n}\nimpl Hidden {\n    pub fn url(&self) -> [Url; 3] {\n    }\n}\n\
        pub struct Tuple(pub Vec<(u8, u8)>, pub [u8; 2]);\npub struct Closed(pub u8, u8);\n#[non_exhaustive]\npub struct \
        Open(pub u8);\npub struct Unit;\n#[non_exhaustive]\npub enum Variants {\n    Array([u8; 3]),\n    Foreign(Url),\n}\n\
        pub trait Acts {\n    fn act(&self, on: [u8; 5]);\n}\nimpl Acts for Unit {\n    fn act(&self, on: [u8; 5]) {\n    }\n}\n\
        pub type Alias = [u8; 6];\nimpl Unit {\n    pub const fn make() -> [u8; 7] {\n    }\n}\npub const TABLE: [u8; 8] =\n    \
        [0; 8];\n";
    let items = Items::read(source);
    let defects: Vec<_> = items.types.iter().flat_map(Type::defects).collect();
    assert_eq!(
        defects,
        [
            "Exhaustive is exhaustive",
            "Exhaustive::Fields can get no further field",
            "Literal can get no further field",
            "Tuple can get no further field"
        ]
    );
    let arrays: Vec<_> = items.signatures.iter().filter(|signature| has_array(signature)).collect();
    assert_eq!(arrays.len(), 8, "{arrays:?}");
    assert!(items.signatures.contains(&"Variants::Foreign(Url),".to_owned()));
    assert!(!has_array("pub fn a(&self, bytes: &[u8]) -> Vec<[u8]>"));
    assert_eq!(foreign_names(source), ["Url", "url"]);
}

/// Whether a defect is of this type or variant, or of a variant of this type.
fn is_of(defect: &str, name: &str) -> bool {
    defect.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', ':']))
}

/// The public items of a file.
struct Items {
    types: Vec<Type>,
    /// Functions, fields and conversions.
    signatures: Vec<String>,
}

struct Type {
    name: String,
    is_enum: bool,
    is_non_exhaustive: bool,
    /// The variants with named fields that are exhaustive.
    variants: Vec<String>,
    /// Whether an application can name all its fields, of which there is at least one.
    is_literal: bool,
}

impl Type {
    fn defects(&self) -> Vec<String> {
        let mut defects = Vec::new();
        if self.is_enum && !self.is_non_exhaustive {
            defects.push(format!("{} is exhaustive", self.name));
        }
        if self.is_literal && !self.is_non_exhaustive {
            defects.push(format!("{} can get no further field", self.name));
        }
        let variants = self.variants.iter();
        defects.extend(variants.map(|variant| format!("{}::{variant} can get no further field", self.name)));
        defects
    }
}

impl Items {
    /// Reads source that rustfmt has formatted: an item ends at the line that closes it.
    fn read(source: &str) -> Self {
        let mut items = Self { types: Vec::new(), signatures: Vec::new() };
        let lines: Vec<&str> = source.lines().collect();
        let (mut attributes, mut in_macro, mut in_trait) = (String::new(), false, false);
        let mut at = 0;
        while let Some(line) = lines.get(at) {
            let text = line.trim();
            at += 1;
            // The enums of this macro are open.
            in_macro = (in_macro || text.starts_with("open_enum!") || text.starts_with("macro_rules!"))
                && *line != "}";
            if text.starts_with("#[") {
                attributes.push_str(text);
                continue;
            }
            if text.is_empty() || text.starts_with("//") || in_macro {
                continue;
            }
            let attributes = std::mem::take(&mut attributes);
            let (is_enum, is_struct) = (text.starts_with("pub enum "), text.starts_with("pub struct "));
            let is_non_exhaustive = attributes.contains("#[non_exhaustive]");
            // The methods of a trait have no `pub`.
            in_trait = (in_trait || line.starts_with("pub trait ")) && *line != "}";
            if (is_enum || is_struct) && text.ends_with('{') {
                let body: Vec<&str> = lines[at..].iter().take_while(|line| **line != "}").copied().collect();
                items.read_type(text, &body, is_enum, is_non_exhaustive);
            } else if is_struct {
                items.read_tuple(&whole(&lines[at - 1..]), is_non_exhaustive);
            } else if SIGNATURES.iter().any(|start| text.starts_with(start))
                || in_trait && line.starts_with("    fn ")
            {
                items.signatures.push(whole(&lines[at - 1..]));
            } else if text.starts_with("pub const ") || text.starts_with("pub static ") {
                // Without its value.
                items.signatures.extend(whole(&lines[at - 1..]).split(" = ").next().map(str::to_owned));
            }
        }
        items
    }

    /// Reads `pub struct Name(pub A, B);`.
    fn read_tuple(&mut self, text: &str, is_non_exhaustive: bool) {
        let name = words(text).nth(2).unwrap_or_default().to_owned();
        let Some((_, fields)) = text.split_once('(') else { return };
        let fields = split_fields(fields.trim_end_matches([';', ')', ' ']));
        let is_literal = fields.iter().all(|field| field.starts_with("pub "));
        let public = fields.iter().filter(|field| field.starts_with("pub "));
        self.signatures.extend(public.map(|field| format!("{name}.{field}")));
        let (is_enum, variants) = (false, Vec::new());
        self.types.push(Type { name, is_enum, is_non_exhaustive, variants, is_literal });
    }

    fn read_type(&mut self, head: &str, body: &[&str], is_enum: bool, is_non_exhaustive: bool) {
        let name = words(head).nth(2).unwrap_or_default().to_owned();
        // What stands deeper belongs to a variant.
        let members = body.iter().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
        let (mut variants, mut fields, mut is_open) = (Vec::new(), Vec::new(), false);
        for member in members.map(|line| line.trim()).filter(|line| !line.starts_with("//")) {
            match member {
                "#[non_exhaustive]" => is_open = true,
                _ if member.starts_with('#') || member.starts_with(['}', ')']) => {}
                _ => {
                    if is_enum && member.ends_with(" {") && !is_open {
                        variants.extend(words(member).next().map(str::to_owned));
                    }
                    fields.push(member);
                    is_open = false;
                }
            }
        }
        let is_literal =
            !is_enum && !fields.is_empty() && fields.iter().all(|field| field.starts_with("pub "));
        if is_enum {
            // With the fields of the variants.
            let written = body.iter().map(|line| line.trim()).filter(|line| !line.starts_with(['/', '#']));
            self.signatures.extend(written.map(|line| format!("{name}::{line}")));
        } else {
            let public = fields.iter().filter(|field| field.starts_with("pub "));
            self.signatures.extend(public.map(|field| format!("{name}.{field}")));
        }
        self.types.push(Type { name, is_enum, is_non_exhaustive, variants, is_literal });
    }
}

/// The beginnings of items whose whole text is their interface.
const SIGNATURES: [&str; 5] = ["pub fn ", "pub async fn ", "pub const fn ", "pub type ", "impl From<"];

/// The text of an item up to its body or its end, in one line.
fn whole(lines: &[&str]) -> String {
    let end = lines.iter().position(|line| line.ends_with(['{', ';'])).unwrap_or(0);
    lines[..=end].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Splits a list of fields at the commas that are in no brackets.
fn split_fields(fields: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = fields.split(|character: char| {
        depth += i32::from("<([".contains(character)) - i32::from(">)]".contains(character));
        character == ',' && depth == 0
    });
    parts.map(str::trim).filter(|field| !field.is_empty()).collect()
}

/// The files of the crate without their tests.
fn sources() -> Vec<(String, String)> {
    fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, found),
                false => found.push(path),
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let tests = ["fuzzing", "interleavings", "queue_tests", "schema_walk", "tests"];
    files.retain(|file| !tests.iter().any(|name| file.file_stem().is_some_and(|stem| stem == *name)));
    files.sort();
    let source = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        (file.strip_prefix(&root).unwrap().display().to_string(), code)
    };
    files.iter().map(source).collect()
}

/// The names that a file imports from crates that are not part of the interface, and the names of these crates.
fn foreign_names(source: &str) -> Vec<String> {
    let imports = source.split("\nuse ").flat_map(|part| part.split(';').next());
    let mut names = Vec::new();
    for import in imports.map(|import| import.strip_prefix("use ").unwrap_or(import)) {
        let Some(name) =
            import.split("::").next().filter(|name| import.contains("::") && !name.contains(' '))
        else {
            continue;
        };
        let is_dependency =
            DEPENDENCIES.lines().any(|line| line.replace('-', "_").starts_with(&format!("{name} = ")));
        if is_dependency && !CRATES.iter().any(|(known, _)| *known == name) {
            let types =
                words(import).filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase()));
            names.extend(types.map(str::to_owned));
            names.push(name.to_owned());
        }
    }
    // Paths that are written out.
    names.extend(
        ["reqwest", "sqlx"]
            .map(str::to_owned)
            .into_iter()
            .filter(|name| source.contains(&format!("{name}::"))),
    );
    names
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| !word.is_empty())
}

/// Whether a signature names an array with its length.
fn has_array(signature: &str) -> bool {
    signature
        .split('[')
        .skip(1)
        .any(|part| part.split(']').next().is_some_and(|inside| inside.contains("; ")))
}
