// What mongosh shows of writes that Keyward refuses; prints the text of each error. The database is the URI's, and has
// `users`, protected, with the constraint `email_1`.
for (const refused of [
  () => db.users.renameCollection('others'),
  () => db.users.aggregate([{ $out: 'users' }]).toArray(),
  () => db.getCollection('keyward.users.email_1').insertOne({ _id: 1 }),
  () => db.getCollection('keyward.users.email_1').deleteMany({}),
]) {
  try {
    refused();
    print('not refused');
  } catch (error) {
    print(error.message);
  }
}
