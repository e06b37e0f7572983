// What the browser stores: conversations, traces of answers, and values such as settings.
// Without IndexedDB (some private windows) everything is in memory until the page is closed.

const STORES = ["conversations", "traces", "values"];
const memory = Object.fromEntries(STORES.map((name) => [name, new Map()]));
let database = null;

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Opens the database; returns whether what is stored outlives the page. */
export async function openStore() {
  try {
    const request = indexedDB.open("engine-playground", 1);
    request.onupgradeneeded = () => {
      for (const name of STORES) request.result.createObjectStore(name);
    };
    database = await settled(request);
    database.onclose = () => (database = null); // the user has cleared what sites store
    return true;
  } catch {
    return false;
  }
}

const objects = (name, mode) => database.transaction(name, mode).objectStore(name);

export async function get(name, key) {
  return database ? settled(objects(name, "readonly").get(key)) : memory[name].get(key);
}

export async function all(name) {
  return database ? settled(objects(name, "readonly").getAll()) : [...memory[name].values()];
}

export async function put(name, key, value) {
  if (database) await settled(objects(name, "readwrite").put(value, key));
  else memory[name].set(key, value);
}

export async function remove(name, key) {
  if (database) await settled(objects(name, "readwrite").delete(key));
  else memory[name].delete(key);
}
